// Weights, running statistics and counters that are set: their types, and the messages for those that do not fit.
#include "dp/error.h"
#include "support/catch.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Sgd kSgd{.lr = 0.1f, .momentum = 0.9f};

const Tensor& named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const auto& [own, tensor] : tensors)
    if (own == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

// Every element of `to` is the converted element of `from`.
template <typename From, typename To>
bool is_converted(const Tensor& from, const Tensor& to) {
  const auto source = from.span<From>();
  const auto target = to.span<To>();
  for (std::size_t i = 0; i < source.size(); ++i)
    if (target[i] != static_cast<To>(source[i])) return false;
  return source.size() == target.size();
}

}  // namespace

TEST_CASE("state dict: float64 tensors are rounded for float32 replicas, and float32 tensors are widened") {
  const Model model = residual_net();
  DataParallel wide(model, on_reference()), narrow(model, on_cpus(2)), again(model, on_reference());
  for (std::uint64_t step = 0; step < 2; ++step) wide.train_step(random_batch(model, 6, step), kSgd);
  const auto of_wide = wide.weights();
  narrow.set_weights(of_wide);
  const auto of_narrow = narrow.weights();
  again.set_weights(of_narrow);
  const auto of_again = again.weights();
  REQUIRE(of_wide.size() == model.parameters().size() + model.buffers().size());
  REQUIRE(of_narrow.size() == of_wide.size());
  REQUIRE(of_again.size() == of_wide.size());
  bool rounds = false;
  for (std::size_t i = 0; i < of_wide.size(); ++i) {
    const auto& [name, tensor] = of_wide[i];
    INFO(name);
    CHECK(of_narrow[i].first == name);
    CHECK(of_again[i].first == name);
    if (name.ends_with("num_batches_tracked")) {
      CHECK(is_converted<std::int64_t, std::int64_t>(tensor, of_narrow[i].second));
      CHECK(is_converted<std::int64_t, std::int64_t>(tensor, of_again[i].second));
      CHECK(*tensor.data<std::int64_t>() == 2);
      continue;
    }
    CHECK(is_converted<double, float>(tensor, of_narrow[i].second));
    CHECK(is_converted<float, double>(of_narrow[i].second, of_again[i].second));
    rounds = rounds || !bit_equal({of_again[i]}, {of_wide[i]});
  }
  CHECK(rounds);
}

TEST_CASE("state dict: tensors of the replicas' own type are set as they are") {
  const Model model = residual_net();
  for (const DataParallelOptions& options : {on_cpus(2), on_reference()}) {
    DataParallel source(model, options), net(model, options);
    source.train_step(random_batch(model, 6), kSgd);
    net.set_weights(source.weights());
    CHECK(bit_equal(net.weights(), source.weights()));
  }
}

TEST_CASE("state dict: one tensor alone replaces that tensor, and all others keep their values") {
  const Model model = residual_net();
  for (const char* const name : {"a.conv2.weight", "a.bn1.running_mean", "b.bn2.running_var", "fc.bias"}) {
    DataParallel net(model, on_cpus(2));
    net.train_step(random_batch(model, 6), kSgd);
    const auto before = net.weights();
    Tensor sevens(named(before, name).shape());
    for (float& value : sevens.span<float>()) value = 7;
    net.set_weights({{name, sevens}});
    const auto after = net.weights();
    for (std::size_t i = 0; i < before.size(); ++i) {
      INFO(name << " set, " << before[i].first);
      CHECK(bit_equal({after[i]}, {before[i].first == name ? NamedTensor(name, sevens) : before[i]}));
    }
    CHECK(net.replicas_identical());
  }
}

TEST_CASE("state dict: an invalid tensor is refused with its name and the expected value, and no weight changes") {
  const Model model = residual_net();
  DataParallelOptions pipeline = on_cpus(3);
  pipeline.pipeline = {.stages = 3, .micro_batches = 2};
  for (const DataParallelOptions& options : {on_cpus(2), pipeline}) {
    DataParallel net(model, options);
    const auto before = net.weights();
    const Tensor zeros(named(before, "conv1.weight").shape());
    const auto refused = [&](const std::string& name, const Tensor& tensor, const std::string& text) {
      try {
        net.set_weights({{"conv1.weight", zeros}, {name, tensor}});
        FAIL("accepted: " << name);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::data);
        CHECK(error.what() == text);
      }
      CHECK(bit_equal(net.weights(), before));
    };
    refused("nothing", Tensor(Shape{1}), "model 'residual_net' has no parameter 'nothing'");
    refused("fc.bias", Tensor(Shape{8}), "parameter 'fc.bias' has shape (6,) in model 'residual_net', not (8,)");
    refused("b.bn1.running_mean", Tensor(Shape{16}),
            "'b.bn1.running_mean' has shape (17,) in model 'residual_net', not (16,)");
    refused("bn1.num_batches_tracked", Tensor(Shape{1}, DType::i64),
            "'bn1.num_batches_tracked' has shape () in model 'residual_net', not (1,)");
    Tensor infinite(Shape{});
    *infinite.data<float>() = INFINITY;
    refused("bn1.num_batches_tracked", infinite, "'bn1.num_batches_tracked' has a value that int64 cannot hold");
  }
}

TEST_CASE("state dict: weights of other types are converted") {
  const Model model = residual_net();
  for (const DataParallelOptions& options :
       {on_cpus(2), DataParallelOptions{.devices = {{DeviceKind::reference, 0}}}}) {
    DataParallel net(model, options);
    Tensor bias(Shape{6}, DType::i32), mean(Shape{17}, DType::f64), counter(Shape{});
    bias.data<std::int32_t>()[5] = -3;
    mean.data<double>()[16] = 0.1;
    *counter.data<float>() = 7.5;
    net.set_weights({{"fc.bias", bias}, {"b.bn1.running_mean", mean}, {"bn1.num_batches_tracked", counter}});
    const auto now = net.weights();
    const DType type = named(now, "fc.bias").dtype();
    CHECK(named(now, "fc.bias").to(DType::f64).data<double>()[5] == -3);
    CHECK(named(now, "b.bn1.running_mean").to(DType::f64).data<double>()[16] == (type == DType::f32 ? 0.1f : 0.1));
    CHECK(*named(now, "bn1.num_batches_tracked").data<std::int64_t>() == 7);
  }
}

TEST_CASE("state dict: an optimizer's updates have limits, and its tensors have the names of its slots") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  net.train_step(random_batch(model, 6), kSgd);
  const OptimizerState before = net.optimizer_state();
  const auto refused = [&](const OptimizerState& state, const std::string& text) {
    try {
      net.set_optimizer_state(state);
      FAIL("accepted: " << text);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::data);
      CHECK(error.what() == text);
    }
    CHECK(net.optimizer_state().updates == 1);
    CHECK(bit_equal(net.optimizer_state().tensors, before.tensors));
  };
  constexpr std::int64_t kMost = (std::int64_t{1} << 53) - 1;
  const Tensor bias(Shape{5});
  refused({"sgd", -1, before.tensors}, "optimizer 'sgd' cannot have made -1 updates");
  refused({"sgd", kMost + 1, before.tensors}, "optimizer 'sgd' cannot have made 9007199254740992 updates");
  refused({"sgd", 1, {{"velocity.conv1.bias", bias}}}, "optimizer 'sgd' has no state 'velocity.conv1.bias'");
  refused({"sgd", 1, {{"momentum_buffer", bias}}}, "optimizer 'sgd' has no state 'momentum_buffer'");
  refused({"sgd", 1, {{"momentum_buffer.conv1.bias", Tensor(Shape{4})}}},
          "parameter 'conv1.bias' has shape (5,) in model 'small_convnet', not (4,)");
  for (const std::int64_t updates : {kMost, std::int64_t{0}}) {
    net.set_optimizer_state({"sgd", updates, before.tensors});
    CHECK(net.optimizer_state().updates == updates);
  }
}
