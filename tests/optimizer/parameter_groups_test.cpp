// Parameter groups: rates and decays of their own, and frozen parameters.
#include <cmath>

#include "dp/error.h"
#include "support/catch.h"
#include "support/frozen_layers.h"
#include "support/optimizers.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

constexpr Sgd kSgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.3f};

DataParallelOptions grouped(int replicas, std::vector<ParameterGroup> groups) {
  DataParallelOptions options = on_cpus(replicas);
  options.parameter_groups = std::move(groups);
  options.bucket_bytes = 2000;
  return options;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// The largest difference between `after` and a plain SGD step with this rate and decay.
double error_of_step(const Tensor& before, const Tensor& gradient, const Tensor& after, float lr, float decay) {
  double worst = 0;
  for (std::int64_t i = 0; i < before.numel(); ++i) {
    const double w = before.data<float>()[i], g = gradient.data<float>()[i];
    worst = std::max(worst, std::abs(after.data<float>()[i] - (w - lr * (g + decay * w))));
  }
  return worst;
}

}  // namespace

TEST_CASE("each parameter moves with the rate and decay of the first group that it fits") {
  const Model model = small_convnet();
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
    DataParallelOptions options = grouped(3, {{.pattern = "fc?.*", .lr_factor = 0.5f},
                                              {.vectors = true, .weight_decay = 0.0f},
                                              {.pattern = "fc2.bias", .lr_factor = 100}});
    options.reduce = reduce;
    DataParallel net(model, options);
    const NamedTensors before = net.weights();
    net.train_step(random_batch(model, 9), kSgd);  // the first step's momentum is the gradient
    const NamedTensors after = net.weights(), gradients = net.gradients();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::string& name = before[i].first;
      INFO(name << " reduce " << static_cast<int>(reduce));
      const bool linear = starts_with(name, "fc"), bias = before[i].second.shape().rank() == 1;
      const float lr = linear ? 0.05f : 0.1f, decay = bias && !linear ? 0.0f : 0.3f;
      CHECK(error_of_step(before[i].second, gradients[i].second, after[i].second, lr, decay) < 1e-6);
      CHECK(error_of_step(before[i].second, gradients[i].second, after[i].second, lr * 2, decay) > 1e-4);
    }
    CHECK(net.replicas_identical());
  }
}

TEST_CASE("frozen parameters keep their bits and do not count in the gradient norm") {
  const Model model = residual_net();
  const Optimizer optimizer = GENERATE(from_range(optimizers_with_state()));
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
    for (const int replicas : {1, 3}) {
      INFO(name_of(optimizer) << ", reduce " << static_cast<int>(reduce) << " replicas " << replicas);
      DataParallelOptions options = grouped(replicas, {{.pattern = "[ab].*", .frozen = true}});
      options.reduce = reduce;
      options.clip_grad_norm = 1e9;  // computes the norm
      DataParallel net(model, options);
      const NamedTensors before = net.weights();
      for (int step = 0; step < 3; ++step)
        net.train_step(random_batch(model, 9, static_cast<std::uint64_t>(step)), optimizer);
      const NamedTensors gradients = net.gradients();
      const Stats stats = net.take_stats();
      double squares = 0;
      for (const auto& [name, gradient] : gradients) {
        double own = 0;
        for (const float g : gradient.span<float>()) own += static_cast<double>(g) * static_cast<double>(g);
        INFO(name);
        CHECK((own == 0) == (starts_with(name, "a.") || starts_with(name, "b.")));
        squares += own;
      }
      CHECK(stats.grad_norm == Approx(std::sqrt(squares)).epsilon(1e-5));
      for (const ParameterSpec& parameter : model.parameters()) {
        const auto find = [&](const NamedTensors& tensors) {
          for (const auto& named : tensors)
            if (named.first == parameter.name) return NamedTensors{named};
          return NamedTensors{};
        };
        const bool frozen = starts_with(parameter.name, "a.") || starts_with(parameter.name, "b.");
        INFO(parameter.name);
        CHECK(bit_equal(find(before), find(net.weights())) == frozen);
      }
      CHECK(net.replicas_identical());
    }
}

TEST_CASE("frozen layers train as layers with rate and decay 0, however many replicas have rows") {
  DataParallelOptions sharded = on_cpus(3), accumulated = on_cpus(2), logical = on_cpus(2);
  sharded.reduce = Reduce::sharded;
  sharded.bucket_bytes = 2000;
  accumulated.reduce = Reduce::all_reduce;
  accumulated.grad_accum_steps = 2;
  logical.logical_shards = 4;
  const std::vector<const char*> start{"conv1.*", "bn1.*", "a.*", "b.*", "c.*"}, middle{"b.*"},
      convolutions{"conv1.*", "a.conv*", "b.conv*", "b.downsample.0.*"}, end{"fc.*", "c.*"};
  check_frozen_layers(on_reference(), start, 9);
  check_frozen_layers(on_cpus(1), start, 9);
  check_frozen_layers(sharded, start, 9);
  check_frozen_layers(sharded, middle, 2);
  check_frozen_layers(accumulated, middle, 9);
  check_frozen_layers(accumulated, convolutions, 9);
  check_frozen_layers(on_cpus(3), {"conv1.*", "bn1.*"}, 2);
  check_frozen_layers(on_cpus(2), end, 9);
}

TEST_CASE("frozen layers have no optimizer state, and their gradients are not reduced") {
  const Model model = residual_net();
  const Sgd momentum{.lr = 0.1f, .momentum = 0.9f};
  const auto optimizer_bytes = [&](std::vector<ParameterGroup> groups) {
    DataParallelOptions options = on_reference();  // its layouts have no padding
    options.parameter_groups = std::move(groups);
    DataParallel net(model, options);
    net.prepare({9}, {}, {}, {}, momentum);
    return net.memory_use(0).optimizer;
  };
  const std::size_t fc = (6 * 8 + 16) * sizeof(double);  // the weights, and the biases up to the next multiple of 16
  CHECK(optimizer_bytes({{.pattern = "[abc]*.*", .frozen = true}}) == fc);
  CHECK(optimizer_bytes({}) > 10 * fc);
  CHECK(optimizer_bytes({{.pattern = "fc.*", .frozen = true}}) == optimizer_bytes({}) - fc);
}

TEST_CASE("groups give the same bits wherever the update runs") {
  const Model model = residual_net();
  std::vector<NamedTensors> weights;
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
    DataParallelOptions options =
        grouped(3, {{.pattern = "a.*", .frozen = true}, {.vectors = true, .lr_factor = 2, .weight_decay = 0.0f}});
    options.reduce = reduce;
    DataParallel net(model, options);
    for (int step = 0; step < 3; ++step) net.train_step(random_batch(model, 9, static_cast<std::uint64_t>(step)), kSgd);
    weights.push_back(net.weights());
    CHECK(bit_equal(weights.back(), weights.front()));
  }
}

TEST_CASE("groups that fit nothing, that are out of range or too many are rejected") {
  const Model model = small_convnet();
  const auto refusal = [&](const std::vector<ParameterGroup>& groups) {
    try {
      DataParallel(model, grouped(1, groups));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refusal({{.pattern = "conv9.*"}}), Catch::Contains("'conv9.*'") && Catch::Contains("conv1.weight"));
  CHECK_THAT(refusal({{.pattern = "*.weight", .vectors = true}}), Catch::Contains("one dimension"));
  CHECK_THAT(refusal({{.pattern = "*", .frozen = true}}), Catch::Contains("all parameters of the model are frozen"));
  CHECK_THAT(refusal({{.pattern = "*.weight", .frozen = true}, {.vectors = true, .frozen = true}}),
             Catch::Contains("all parameters of the model are frozen"));
  CHECK_THAT(refusal({{.lr_factor = -1}}), Catch::Contains("not negative"));
  CHECK_THAT(refusal({{.weight_decay = NAN}}), Catch::Contains("not negative"));
  CHECK_THAT(refusal(std::vector<ParameterGroup>(16)), Catch::Contains("at most 15"));
  CHECK(refusal(std::vector<ParameterGroup>(15)) == "accepted");
}
