// Which samples a run reads, in which order, and whether it augments them.
#include <functional>
#include <mutex>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/fake_time.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::tiny_options;

using Samples = std::vector<std::int64_t>;

// Records every read: the sample, and the first number of its augmentation stream if there is one.
class Recording final : public Dataset {
 public:
  struct Read {
    std::int64_t sample;
    std::optional<std::uint32_t> drawn;
    bool operator==(const Read&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Read& read) {  // "17", or "17+" if augmented
      return out << read.sample << (read.drawn ? "+" : "");
    }
  };

  explicit Recording(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape image_shape() const override { return {1, 2, 2}; }
  std::int64_t classes() const override { return 10; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % 10); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    std::fill(out.begin(), out.end(), static_cast<std::uint8_t>(index));
    const std::scoped_lock lock(mutex_);
    reads_.push_back({index, random ? std::optional(random->next()) : std::nullopt});
  }
  std::vector<Read> take() const {
    const std::scoped_lock lock(mutex_);
    return std::exchange(reads_, {});
  }

 private:
  std::int64_t size_;
  Normalization normalization_{{0.5f}, {0.5f}};
  mutable std::mutex mutex_;
  mutable std::vector<Read> reads_;
};

std::vector<Recording::Read> plain(const Samples& samples) {
  std::vector<Recording::Read> reads;
  for (const std::int64_t sample : samples) reads.push_back({sample, std::nullopt});
  return reads;
}

std::vector<Recording::Read> augmented(const Samples& samples, std::uint64_t seed, std::int64_t epoch) {
  std::vector<Recording::Read> reads;
  for (const std::int64_t sample : samples)
    reads.push_back(
        {sample, Random(seed, RandomUse::augment, static_cast<std::uint64_t>(epoch), static_cast<std::uint64_t>(sample))
                     .next()});
  return reads;
}

Samples counted(std::int64_t size) {
  Samples all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A Fisher-Yates shuffle keyed by (seed, epoch).
Samples shuffled(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  Samples order = counted(size);
  Random random(seed, RandomUse::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
  return order;
}

struct Epochs {
  std::vector<std::vector<Recording::Read>> train, test;  // indexed by epoch
  std::vector<std::int64_t> trained;                      // samples per step
  std::int64_t steps = 0;
};

Epochs run(TrainerOptions options, std::int64_t size = 300) {
  const auto train = std::make_shared<Recording>(size), test = std::make_shared<Recording>(130);
  Epochs epochs;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) { epochs.trained.push_back(report.recent.samples); };
  callbacks.on_eval =
      [&](const EvalReport& report) {  // all batches of this epoch were read; the next epoch has not started
        CHECK(report.stats.samples == 130);
        epochs.train.push_back(train->take());
        epochs.test.push_back(test->take());
      };
  epochs.steps = Trainer(models::mlp({.input = {1, 2, 2}, .hidden = {3}}), {train, test}, options).run(callbacks).steps;
  return epochs;
}

TEST_CASE("an epoch trains on every sample once, shuffled and augmented by seed, epoch and sample") {
  std::set<Samples> orders;
  for (const std::uint64_t seed : {42, 7}) {
    TrainerOptions options = tiny_options();
    options.parallel.seed = seed;
    const Epochs epochs = run(options);
    REQUIRE(epochs.train.size() == 3);
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      INFO("seed " << seed << ", epoch " << epoch);
      const Samples order = shuffled(300, seed, static_cast<std::int64_t>(epoch));
      CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 300);
      CHECK(epochs.train[epoch] == augmented(order, seed, static_cast<std::int64_t>(epoch)));
      orders.insert(order);
    }
    CHECK(epochs.steps == 21);
  }
  CHECK(orders.size() == 6);
}

TEST_CASE("an evaluation reads every test image once, in order, never augmented") {
  for (const bool augment : {true, false}) {
    TrainerOptions options = tiny_options();
    options.augment = augment;
    const Epochs epochs = run(options);
    REQUIRE(epochs.test.size() == 3);
    for (const auto& reads : epochs.test) CHECK(reads == plain(counted(130)));
  }
  TrainerOptions averaging = tiny_options();  // evaluates twice: the weights and their average
  averaging.parallel.ema_decay = 0.9;
  const Epochs epochs = run(averaging);
  REQUIRE(epochs.test.size() == 6);
  for (const auto& reads : epochs.test) CHECK(reads == plain(counted(130)));
}

TEST_CASE("without shuffling samples come in order, and without augmentation unchanged") {
  TrainerOptions options = tiny_options();
  options.shuffle = false;
  const Epochs in_order = run(options);
  for (std::size_t epoch = 0; epoch < 3; ++epoch)
    CHECK(in_order.train.at(epoch) == augmented(counted(300), 42, static_cast<std::int64_t>(epoch)));
  options.augment = false;
  const Epochs bare = run(options);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) CHECK(bare.train.at(epoch) == plain(counted(300)));
  options.shuffle = true;
  const Epochs unaugmented = run(options);
  for (std::size_t epoch = 0; epoch < 3; ++epoch)
    CHECK(unaugmented.train.at(epoch) == plain(shuffled(300, 42, static_cast<std::int64_t>(epoch))));
}

TEST_CASE("a short last batch is trained on, or with drop_last neither trained on nor read") {
  for (const std::int64_t rest : {0, 1, 24, 47}) {
    INFO("a remainder of " << rest << " of 48");
    const std::int64_t size = 3 * 48 + rest;
    TrainerOptions options = tiny_options();
    options.epochs = 2;
    for (const bool drops : {false, true}) {
      options.drop_last = drops;
      const Epochs epochs = run(options, size);
      std::vector<std::int64_t> trained(3, 48);
      if (!drops && rest > 0) trained.push_back(rest);
      CHECK(epochs.steps == 2 * static_cast<std::int64_t>(trained.size()));
      trained.insert(trained.end(), trained.begin(), trained.end());
      CHECK(epochs.trained == trained);
      for (std::size_t epoch = 0; epoch < 2; ++epoch) {
        Samples order = shuffled(size, 42, static_cast<std::int64_t>(epoch));
        if (drops) order.resize(3 * 48);
        CHECK(epochs.train.at(epoch) == augmented(order, 42, static_cast<std::int64_t>(epoch)));
      }
    }
  }
}

TEST_CASE("a resumed run continues the order of the same epoch") {
  const dp::test::TemporaryFolder temp;
  const auto train = std::make_shared<Recording>(300), test = std::make_shared<Recording>(130);
  const Model model = models::mlp({.input = {1, 2, 2}, .hidden = {3}});
  TrainerOptions options = tiny_options(temp.path());
  std::atomic<int> stop{0};
  options.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 10) stop = 2;
  };
  REQUIRE(Trainer(model, {train, test}, options).run(callbacks).steps == 10);  // the fourth batch of epoch 1 is next
  train->take();
  options.stop = nullptr;
  options.resume = "auto";
  options.max_steps = 14;
  REQUIRE(Trainer(model, {train, test}, options).run().steps == 14);
  const Samples order = shuffled(300, 42, 1);
  CHECK(train->take() == augmented(Samples(order.begin() + 3 * 48, order.end()), 42, 1));
}

// Two epochs. Returns the notices about waits.
std::vector<std::string> waits_of(const std::function<void()>& after_step) {
  const auto train = std::make_shared<Recording>(300), test = std::make_shared<Recording>(1);
  TrainerOptions options = tiny_options();
  options.epochs = 2;
  std::vector<std::string> notices;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport&) { after_step(); };
  callbacks.on_message = [&](const std::string& text) {
    if (text.find("waited") != std::string::npos) notices.push_back(text);
  };
  Trainer(models::mlp({.input = {1, 2, 2}, .hidden = {3}}), {train, test}, options).run(callbacks);
  return notices;
}

TEST_CASE("a run that waits for its data says so once") {
  {
    test::TimeOfLooks time;
    const std::vector<std::string> notices = waits_of([] {});
    REQUIRE(notices.size() == 1);
    CHECK_THAT(notices[0], Catch::Contains("of the time for data; raise --workers (now 1)"));
  }
  test::TimeOfRates time;
  CHECK(waits_of([&] { time.pass(1); }).empty());
}

}  // namespace
