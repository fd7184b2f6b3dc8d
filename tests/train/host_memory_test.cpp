// A run that exceeds the host's memory is refused before it creates replicas and batches. The error suggests what fits.
#include "engine/train/host_memory.h"
#include "kernels/device/host/memory.h"
#include "support/catch.h"
#include "support/fake_system.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr std::size_t kKiB = 1024;

Model narrow_net() { return models::mnist_convnet({.width = 4}); }

TrainerOptions options_of(std::int64_t batch, int replicas) {
  TrainerOptions options = tiny_options();
  options.epochs = 1;
  options.batch_size = batch;
  options.parallel.devices = cpus(replicas);
  options.parallel.pin_threads = false;
  return options;
}

// What a run needs beyond what is resident.
std::size_t need_of(const TrainerOptions& options) {
  const HostMemory parts = estimate_host_memory(narrow_net(), tiny_digits(), options);
  return parts.total() - parts.process;
}
std::size_t bytes_of(std::int64_t batch, int replicas) { return need_of(options_of(batch, replicas)); }

// Suggestions leave a tenth of the free memory unused.
std::size_t kibibytes_promising(std::size_t bytes) { return bytes / 9 * 10 / kKiB + 2; }

std::string refusal(const TrainerOptions& options, bool training = true) {
  try {
    require_memory(narrow_net(), tiny_digits(), options, training);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    return error.what();
  }
  return "";
}
std::string refusal(std::int64_t batch, int replicas, bool training = true) {
  return refusal(options_of(batch, replicas), training);
}

std::int64_t number_behind(const std::string& text, const std::string& words) {
  const auto at = text.rfind(words);
  INFO(text);
  REQUIRE(at != std::string::npos);
  return std::stoll(text.substr(at + words.size()));
}

TEST_CASE("a run that fits to the byte is accepted, and one KiB less memory rejects it") {
  const FakeSystem system;
  for (const int replicas : {1, 2, 5})
    for (const std::int64_t batch : {40, 100, 290}) {
      INFO(replicas << " replicas, batch " << batch);
      const std::size_t kibibytes = (bytes_of(batch, replicas) + kKiB - 1) / kKiB;
      system.set_available(kibibytes);
      CHECK(refusal(batch, replicas).empty());
      system.set_available(kibibytes - 1);
      CHECK_THAT(refusal(batch, replicas),
                 Catch::Contains("out of memory: a batch of " + std::to_string(batch) + " on ") &&
                     Catch::Contains("MemAvailable of /proc/meminfo"));
      CHECK(refusal(batch, replicas, /*training=*/false).empty());
    }
}

TEST_CASE("each part of a run's host memory is what the run allocates") {
  TrainerOptions options = options_of(40, 2);
  options.parallel.threads_per_replica = 1;
  const auto parts = [&] { return estimate_host_memory(narrow_net(), tiny_digits(), options); };
  std::size_t replicas = 0;
  for (const MemoryUse& use : estimate_memory(narrow_net(), options.parallel, {40, 20}, {128, 2}, options.optimizer))
    replicas += resident_bytes(use, options.parallel);
  CHECK(parts().replicas == replicas);
  // Four training batches of 40, three of 128 test images, an image for each loader's thread, the samples' order, and
  // the digits that are not drawn yet.
  const std::size_t kept = tiny_digits().train->bytes_to_cache() + tiny_digits().test->bytes_to_cache();
  CHECK(parts().loaders ==
        (4 * 40 + 3 * 128) * 784 * sizeof(float) + 2 * 784 + (300 + 130) * sizeof(std::int64_t) + kept);
  CHECK(parts().records == 0);
  CHECK(parts().process > std::size_t{1} << 20);
  options.images_on = ImagesOn::device;
  CHECK(parts().loaders == 2 * 784 + (300 + 130) * sizeof(std::int64_t) + kept);
  options.output_dir = "run";
  CHECK(parts().records == 2 * 130 * 10 * sizeof(float));
}

TEST_CASE("a checkpoint needs copies of the weights, the optimizer's state and the average, and a dry run needs none") {
  const std::size_t copy = static_cast<std::size_t>(narrow_net().parameter_count()) * sizeof(float);
  const std::size_t staged = kernels::resident_bytes(16 * 1152 * sizeof(float));  // the largest tensor, fc1.weight
  const auto check = [&](const Optimizer& optimizer, bool average, bool dry_run, std::size_t bytes, int replicas = 2,
                         std::size_t bucket = 0) {
    INFO(name_of(optimizer) << " " << average << dry_run << " on " << replicas);
    TrainerOptions options = options_of(40, replicas);
    options.parallel.bucket_bytes = bucket;
    options.optimizer = optimizer;
    options.output_dir = "run";
    options.dry_run = dry_run;
    if (average) options.parallel.ema_decay = 0.5;
    CHECK(estimate_host_memory(narrow_net(), tiny_digits(), options).copies == bytes);
    const FakeSystem system;
    const std::size_t kibibytes = (need_of(options) + kKiB - 1) / kKiB;
    system.set_available(kibibytes);
    CHECK(refusal(options).empty());
    system.set_available(kibibytes - 1);
    CHECK_FALSE(refusal(options).empty());
  };
  check(Sgd{.momentum = 0}, false, false, copy);
  check(Sgd{.momentum = 0}, true, false, 2 * copy);
  check(Sgd{.momentum = 0.9f}, false, false, 2 * copy + staged);
  check(Sgd{.momentum = 0.9f}, false, false, 2 * copy, 1);  // one bucket
  check(Sgd{.momentum = 0.9f}, false, false, 2 * copy + staged, 1, 4096);
  check(AdamW{}, false, false, 3 * copy + staged);
  check(AdamW{}, true, false, 4 * copy + staged);
  check(AdamW{}, false, true, copy);
  check(RmsProp{.momentum = 0.9f, .centered = true}, false, false, 4 * copy + staged);
}

TEST_CASE("the suggested batch size fits, and so do the replicas") {
  const FakeSystem system;
  for (const ImagesOn place : {ImagesOn::host, ImagesOn::device}) {
    TrainerOptions options = options_of(290, 2);
    options.images_on = place;
    // A larger batch needs fewer loader slots, so host memory is not monotonic in the batch size. Device-resident
    // images use no loader batches.
    const std::size_t bytes =
        bytes_of(100, 2) - (place == ImagesOn::device ? (300 + 3 * 128) * 784 * sizeof(float) : 0);
    system.set_available(kibibytes_promising(bytes));
    options.batch_size = number_behind(refusal(options), "; a batch of ");
    CHECK(options.batch_size >= (place == ImagesOn::device ? 95 : 30));
    CHECK(refusal(options).empty());
  }
  system.set_available(kibibytes_promising(bytes_of(128, 11)));
  const std::int64_t replicas = number_behind(refusal(128, 64), "; ");
  CHECK(replicas >= 11);
  CHECK(refusal(128, static_cast<int>(replicas)).empty());
  system.set_available(100);
  CHECK_THAT(refusal(128, 4), Catch::Contains("no batch fits on any number of replicas: use a smaller model"));
}

TEST_CASE("a trainer checks memory before it makes batches and again with the replicas in memory") {
  const FakeSystem system;
  system.set_available(64'000);
  Trainer trainer(narrow_net(), tiny_digits(), options_of(290, 2));
  system.set_available(1'000);
  expect_error(ErrorCode::device, {"a batch of 290 on 2 replicas needs", " for the replicas)", "fits"},
               [&] { trainer.run(); });
  Trainer other = [&] {
    system.set_available(64'000);
    return Trainer(narrow_net(), tiny_digits(), options_of(290, 2));
  }();
  system.set_available(200);
  expect_error(ErrorCode::device, {"out of memory"}, [&] { other.evaluate(); });
  system.set_available(64'000);
  CHECK(tiny_run(options_of(290, 2)).steps == 2);
}

}  // namespace
