// What a run writes for people: report.html, and predictions.json, from which the page shows what is confused.
#include <algorithm>
#include <utility>

#include "dp/report.h"
#include "engine/train/busy.h"
#include "engine/train/passes.h"
#include "engine/train/training_run.h"

namespace dp {

void TrainingRun::store_logits() {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // on all devices
  const std::int64_t classes = net_.model().output().numel(), batches = test_.batches_per_epoch();
  predicts_ = writes_ && classes <= kMostClasses && classes == test_.dataset().classes() &&
              batches * eval_batch_size(options_) * classes <= kMostBytes / static_cast<std::int64_t>(sizeof(float));
  if (predicts_) net_.store_logits(batches, std::ranges::max(test_.batch_sizes()));
}

void TrainingRun::take_predictions(bool average) {
  if (!predicts_) return;
  Predictions all = predictions_of(net_.take_logits(), net_.model().output().numel());
  if (group() != nullptr) all = merged(group()->exchange(packed(all)));
  predictions_.reset();
  if (!folder_.writes() || all.samples != test_.dataset().size()) return;  // a device had no room for its part
  all.step = state_.step;
  all.average = average;
  predictions_ = std::move(all);
}

void TrainingRun::write_page(bool last) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  if (!folder_.writes() || (!last && begin < next_page_)) return;
  const Busy busy(group());
  if (predictions_)
    write_record([this] {
      const Predictions taken = *std::exchange(predictions_, std::nullopt);
      write_predictions(folder_.path() + "/predictions.json", taken, test_.dataset());
    });
  write_record([this] { write_report({folder_.path()}, folder_.path() + "/report.html"); });
  constexpr int kRarely = 400;  // a quarter of a percent of the run's time
  next_page_ = Clock::now() + kRarely * (Clock::now() - begin);
}

}  // namespace dp
