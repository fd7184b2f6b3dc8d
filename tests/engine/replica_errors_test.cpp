// The whole text of errors in a replica's worker: the phase, the reason, and the other replicas' errors.
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>

#include "dp/error.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// Images whose memory cannot be read by a replica: its access throws.
class ThrowingStorage final : public Storage {
 public:
  ThrowingStorage(std::size_t bytes, std::function<void()> fail) : bytes_(bytes), fail_(std::move(fail)) {}
  void* data() override { return bytes_.data(); }
  std::size_t bytes() const override { return bytes_.size(); }
  Device device() const override { return {}; }
  bool host_accessible() const override {
    fail_();
    return true;
  }
  void read(void*, const void*, std::size_t) const override {}

 private:
  std::vector<std::byte> bytes_;
  const std::function<void()> fail_;
};

struct Failure {
  ErrorCode code{};
  std::string text = "no error";
  std::vector<std::string> others;
};

Failure failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.others()};
  }
  return {};
}

// A step of two replicas in which each of them throws.
Failure failure_of_reading(const std::function<void()>& fail) {
  const Model model = small_convnet();
  DataParallel net(model, on_cpus(2));
  Batch batch = random_batch(model, 4);
  const Shape shape = batch.images.shape();
  batch.images = Tensor(shape, DType::f32, std::make_shared<ThrowingStorage>(batch.images.bytes(), fail));
  return failure_of([&] { net.train_step(batch, Sgd{}); });
}

}  // namespace

TEST_CASE("replica errors: an exception of any type is reported with its phase and an error code") {
  const std::string first = "replica 0 (cpu) failed in scatter of step 0: ";
  const std::string second = "replica 1 (cpu) failed in scatter of step 0: ";
  const Failure memory = failure_of_reading([] { throw std::bad_alloc(); });
  const std::string out = "out of host memory; use a smaller batch or fewer replicas";
  CHECK(memory.code == ErrorCode::device);
  CHECK(memory.text == first + out);
  CHECK(memory.others == std::vector{second + out});
  const Failure standard = failure_of_reading([] { throw std::runtime_error("lost"); });
  CHECK(standard.code == ErrorCode::device);
  CHECK(standard.text == first + "lost");
  CHECK(standard.others == std::vector{second + "lost"});
  const Failure own = failure_of_reading([] { throw Error(ErrorCode::io, "not there"); });
  CHECK(own.code == ErrorCode::io);
  CHECK(own.text == first + "not there");
  CHECK(own.others == std::vector{second + "not there"});
}

TEST_CASE("replica errors: a non-finite loss and a non-finite gradient have different messages") {
  const Model model = smooth_convnet();
  const auto train = [&](int replicas) {
    return failure_of([&] {
      DataParallel net(model, on_cpus(replicas));
      for (int step = 0; step < 2; ++step) net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
    });
  };
  {
    const FailEnvironment fail("nan:forward:dev1:step1");
    const Failure failure = train(2);
    CHECK(failure.code == ErrorCode::nonfinite);
    CHECK(failure.text == "replica 1 (cpu) failed in loss of step 1: the loss of 1 samples is not finite");
    CHECK(failure.others.empty());
  }
  const FailEnvironment fail("nan:backward:step1");
  const Failure failure = train(1);
  CHECK(failure.code == ErrorCode::nonfinite);
  CHECK(failure.text == "replica 0 (cpu) failed in update of step 1: a gradient is not finite");
}

TEST_CASE("replica errors: an evaluation's loss that is not finite is reported with the statistics") {
  const Model model = smooth_convnet();
  for (const int replica : {0, 1}) {
    DataParallel net(model, on_cpus(2));
    net.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
    Batch batch = random_batch(model, 8);
    batch.images.span<float>()[static_cast<std::size_t>(replica * batch.images.numel() / 2)] =
        std::numeric_limits<float>::quiet_NaN();
    net.evaluate(batch);
    const Failure failure = failure_of([&] { net.take_stats(); });
    CHECK(failure.code == ErrorCode::nonfinite);
    CHECK(failure.text ==
          "replica " + std::to_string(replica) +
              " (cpu) failed in loss of step 1: a loss or gradient is not finite, in this step or in an earlier one "
              "since the last report");
    CHECK(failure.others.empty());
    // The object is of no further use.
    const Failure later = failure_of([&] { net.take_stats(); });
    CHECK(later.code == ErrorCode::usage);
    CHECK(later.text == "this DataParallel failed in an earlier call; destroy it and make a new one");
  }
}
