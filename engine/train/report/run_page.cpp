#include "engine/train/report/run_page.h"

#include <algorithm>
#include <utility>

#include "dp/report.h"
#include "engine/train/passes.h"

namespace dp {

void RunPage::store_logits(DataParallel& net, Loader& test, const TrainerOptions& options) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // on all devices
  const std::int64_t classes = net.model().output().numel(), batches = test.batches_per_epoch();
  predicts_ = !test.dataset().has_targets() && classes <= kMostClasses && classes == test.dataset().classes() &&
              batches * eval_batch_size(options) * classes <= kMostBytes / static_cast<std::int64_t>(sizeof(float));
  // With views of the images, the evaluation itself keeps the averaged outputs.
  if (predicts_ && options.test_augmentation == TestAugmentation::none)
    net.store_logits(batches, std::ranges::max(test.batch_sizes()));
}

void RunPage::take_predictions(const EvaluatedLogits& evaluated, std::int64_t classes, const Dataset& test,
                               std::int64_t step, bool average) {
  if (!predicts_) return;
  Predictions all = predictions_of(evaluated, classes);
  if (group_ != nullptr) all = merged(group_->exchange(packed(all)));
  predictions_.reset();
  if (!folder_.writes() || all.samples != test.size()) return;  // a device had no room for its part
  all.step = step;
  all.average = average;
  predictions_ = std::move(all);
}

void RunPage::write(const Dataset& test, bool last) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  if (!folder_.writes() || (!last && begin < next_)) return;
  const Busy busy(group_);
  if (predictions_)
    notices_.attempt([&] {
      const Predictions taken = *std::exchange(predictions_, std::nullopt);
      write_predictions(folder_.path() + "/predictions.json", taken, test);
    });
  notices_.attempt([&] { write_report({folder_.path()}, folder_.path() + "/report.html"); });
  constexpr int kRarely = 400;  // a quarter of a percent of the run's time
  next_ = Clock::now() + kRarely * (Clock::now() - begin);
}

}  // namespace dp
