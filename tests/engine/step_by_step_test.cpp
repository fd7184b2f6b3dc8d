// The order of forward(), backward() and step(), what counts as a step, and the messages for everything else.
#include <cstring>

#include "dp/error.h"
#include "dp/process_group.h"
#include "support/catch.h"
#include "support/device_images.h"
#include "support/failing.h"
#include "support/refusal.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr Sgd kMomentum{.lr = 0.1f, .momentum = 0.9f};
const std::string kNeedsForward = "backward() needs a forward() before it";

}  // namespace

TEST_CASE("step by step: backward() is refused unless its forward() is the last use of the network") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 6);
  DataParallelOptions options = on_cpus(2);
  options.ema_decay = 0.5;
  DataParallel net(model, options);
  const Tensor gradient(Shape{6, 7});
  CHECK(refusal_of([&] { net.backward(gradient); }) == kNeedsForward);
  const auto refused_after = [&](const char* call, const auto& work) {
    net.forward(batch.images);
    work();
    INFO(call);
    CHECK(refusal_of([&] { net.backward(gradient); }) == kNeedsForward);
  };
  const auto weights = net.weights();
  refused_after("backward", [&] { net.backward(gradient); });
  refused_after("predict", [&] { net.predict(batch.images); });
  refused_after("evaluate", [&] { net.evaluate(batch); });
  refused_after("train_step", [&] { net.train_step(batch, kMomentum); });
  refused_after("step", [&] { net.step(kMomentum); });
  refused_after("set_weights", [&] { net.set_weights(weights); });
  refused_after("set_optimizer_state", [&] { net.set_optimizer_state({}); });
  refused_after("swap_average", [&] { net.swap_average(); });
  net.forward(batch.images);
  net.take_stats();
  CHECK(refusal_of([&] { net.backward(gradient); }) == "accepted");
}

TEST_CASE("step by step: each forward() counts as a step, together with the step() or train_step() after it") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 6);
  DataParallel net(model, on_cpus(2));
  CHECK(net.step_count() == 0);
  net.forward(batch.images);
  CHECK(net.step_count() == 1);
  net.forward(batch.images);
  CHECK(net.step_count() == 2);
  net.backward(Tensor(Shape{6, 7}));
  CHECK(net.step_count() == 2);
  net.step(kMomentum);
  CHECK(net.step_count() == 2);
  net.train_step(batch, kMomentum);
  CHECK(net.step_count() == 3);
  net.forward(batch.images);
  CHECK(net.step_count() == 4);
  net.train_step(batch, kMomentum);
  CHECK(net.step_count() == 5);
  net.predict(batch.images), net.evaluate(batch);
  CHECK(net.step_count() == 5);
  net.forward(batch.images);
  net.set_step_count(10);
  CHECK(net.step_count() == 10);
  net.step(kMomentum);
  CHECK(net.step_count() == 11);
}

TEST_CASE("step by step: images and gradients that do not fit are rejected with both shapes") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 6);
  DataParallel net(model, on_cpus(2));
  const std::string reads = " do not fit model 'small_convnet', which reads (2, 12, 12) per sample";
  for (const Tensor& images :
       {Tensor(), Tensor(Shape{6, 3, 12, 12}), Tensor(Shape{2, 12, 12}), batch.images.rows(0, 0)})
    for (const bool training : {true, false})
      CHECK(refusal_of([&] { training ? net.forward(images) : net.predict(images); }) ==
            "images of shape " + to_string(images.shape()) + reads);
  CHECK(net.step_count() == 0);
  net.forward(batch.images);
  const auto refused = [&](const Tensor& gradient, const std::string& given) {
    CHECK(refusal_of([&] { net.backward(gradient); }) ==
          "the gradient of the logits has " + given + ", the logits have (6, 7) and float32");
  };
  refused(Tensor(Shape{6, 8}), "shape (6, 8) and type float32");
  refused(Tensor(Shape{5, 7}), "shape (5, 7) and type float32");
  refused(Tensor(Shape{6, 7}, DType::f64), "shape (6, 7) and type float64");
  CHECK(refusal_of([&] { net.backward(Tensor(Shape{6, 7})); }) == "accepted");  // the forward() still counts
}

TEST_CASE("step by step: prepare() refuses an optimizer that a step refuses") {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(1));
  const Sgd bad{.momentum = -1};
  const std::string text = refusal_of([&] { net.train_step(random_batch(model, 4), bad); });
  CHECK(text != "accepted");
  CHECK(refusal_of([&] { net.prepare({4}, {}, {}, {}, bad); }) == text);
}

TEST_CASE("step by step: options that allow only train_step and evaluate are named") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 4);
  const auto refused = [&](const DataParallelOptions& options, const std::string& text) {
    DataParallel net(model, options);
    CHECK(refusal_of([&] { net.forward(batch.images); }) == text);
    CHECK(refusal_of([&] { net.predict(batch.images); }) == text);
    CHECK(refusal_of([&] { net.step(Sgd{}); }) == text);
  };
  DataParallelOptions options = on_cpus(1);
  options.logical_shards = 2;
  refused(options,
          "with several logical shards per replica only train_step and evaluate are available; to call forward() and "
          "backward(), use as many logical shards as replicas, or no logical shards");
  options = on_cpus(1);
  options.process_group = ProcessGroup::join({});
  refused(options, "with a process group only train_step and evaluate are available");
  options = on_cpus(2);
  options.pipeline.stages = 2;
  refused(options, "with pipeline stages only train_step and evaluate are available");
  options = on_reference();
  options.amp = Amp::float16;
  DataParallel scaled(model, options);
  const std::string text =
      "with float16 only train_step trains, because the devices scale the loss; use train_step, or bfloat16";
  CHECK(refusal_of([&] { scaled.backward(scaled.forward(batch.images)); }) == text);
  CHECK(refusal_of([&] { scaled.step(Sgd{}); }) == text);
  DataParallelOptions as_many = on_cpus(2);
  as_many.logical_shards = 2;
  DataParallel net(model, as_many);
  CHECK(net.forward(batch.images).shape() == Shape{4, 7});
}

TEST_CASE("step by step: the logits are a tensor of the first device with its own memory") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 6);
  for (const DataParallelOptions& options : {on_cpus(1), on_cpus(3), on_reference()}) {
    DataParallel net(model, options);
    const Tensor& logits = net.predict(batch.images);
    const bool wide = options.devices.front().kind == DeviceKind::reference;
    CHECK(logits.shape() == Shape{6, 7});
    CHECK(logits.dtype() == (wide ? DType::f64 : DType::f32));
    CHECK(logits.device() == options.devices.front());
    CHECK(logits.storage()->host_accessible());
    CHECK(logits.storage()->bytes() == std::size_t{6 * 7} * size_of(logits.dtype()));
    std::vector<std::byte> read(logits.bytes());
    logits.storage()->read(read.data(), logits.raw(), read.size());
    CHECK(std::memcmp(read.data(), logits.raw(), read.size()) == 0);
  }
}

TEST_CASE("a batch that does not fit is rejected with the reason, and has no effect") {
  const Model model = small_convnet();
  const Batch good = random_batch(model, 8);
  DataParallel net(model, on_cpus(2)), fresh(model, on_cpus(2));
  const auto refused = [&](const Batch& batch, const std::string& text) {
    CHECK(refusal_of([&] { net.train_step(batch, kMomentum); }) == text);
    CHECK(refusal_of([&] { net.evaluate(batch); }) == text);
  };
  refused({}, "a batch needs at least one sample");
  Batch batch = good;
  batch.images = Tensor(Shape{8, 3, 12, 12});
  refused(batch, "images of shape (8, 3, 12, 12) do not fit model 'small_convnet', which reads (2, 12, 12) per sample");
  batch = good;
  batch.labels = Tensor(Shape{9}, DType::i32);
  refused(batch, "a batch has 8 images but 9 labels; give one label per image");
  batch.labels = Tensor();
  refused(batch, "a batch has 8 images but 0 labels; give one label per image");
  for (const DType type : {DType::f32, DType::f64, DType::u8, DType::i64, DType::bf16}) {
    batch.labels = Tensor(Shape{8}, type);
    refused(batch, "labels are " + std::string(to_string(type)) + ", not int32; convert them");
  }
  batch.labels = Tensor(Shape{8, 1}, DType::i32);
  refused(batch, "the labels of a batch have shape (8, 1); give one class number per image: (8,)");
  const std::int64_t classes = model.output()[0];
  for (const std::int64_t wrong : {std::int64_t{-1}, classes}) {
    batch.labels = good.labels.clone();
    batch.labels.data<std::int32_t>()[7] = static_cast<std::int32_t>(wrong);
    refused(batch, "label " + std::to_string(wrong) + " is not one of the " + std::to_string(classes) +
                       " classes of model 'small_convnet', 0 to " + std::to_string(classes - 1));
  }
  batch = good;
  for (const DType type : {DType::f64, DType::u8, DType::f16}) {
    batch.images = Tensor(good.images.shape(), type);
    refused(batch, "images are " + std::string(to_string(type)) + ", not float32; convert them");
    CHECK(refusal_of([&] { net.forward(batch.images); }) ==
          "images are " + std::string(to_string(type)) + ", not float32; convert them");
  }
  batch = good;
  batch.samples = Tensor(Shape{8}, DType::i32);
  refused(batch, "sample indices are int32, not int64; convert them");
  batch = good;
  batch.samples = good.samples.rows(0, 7);
  refused(batch, "a batch has 8 images but 7 sample indices; give one index per image");
  batch = good;
  batch.images = Tensor();
  batch.resident.set = read_images(RandomImages(model.input(), 7, 4));
  const std::string range = " is out of range; the images have indices 0 to 3";
  for (std::int64_t i = 0; i < 8; ++i) batch.samples.data<std::int64_t>()[i] = i % 4;
  for (const std::int64_t wrong : {-1, 4}) {
    batch.samples.data<std::int64_t>()[7] = wrong;
    refused(batch, "sample index " + std::to_string(wrong) + range);
  }
  CHECK(net.step_count() == 0);
  CHECK(net.take_stats().samples == 0);
  for (DataParallel* const one : {&net, &fresh}) one->train_step(random_batch(model, 8), kMomentum);
  CHECK(bit_equal(net.weights(), fresh.weights()));
}

TEST_CASE("replicas checked by --check-replicas: a difference in any of them is detected after a step") {
  const Model model = small_convnet();
  for (const int replica : {1, 2}) {
    INFO("replica " << replica);
    const FailEnvironment fail("nan:update:dev" + std::to_string(replica) + ":step1");
    DataParallelOptions options = on_cpus(3);
    options.reduce = Reduce::all_reduce;
    options.on_nonfinite = OnNonfinite::skip;
    DataParallel net(model, options);
    net.train_step(random_batch(model, 6), kMomentum);
    CHECK(net.replicas_identical());
    net.train_step(random_batch(model, 6), kMomentum);
    CHECK_FALSE(net.replicas_identical());
    options.check_replicas = true;
    DataParallel checked(model, options);
    checked.train_step(random_batch(model, 6), kMomentum);
    CHECK(refusal_of([&] { checked.train_step(random_batch(model, 6), kMomentum); }, ErrorCode::device) ==
          "the replicas' weights differ after step 2");
  }
}
