// One training run, from the initial weights to the summary: epochs, evaluations, reports and checkpoints.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dp/dataset.h"
#include "dp/process_group.h"
#include "dp/trainer.h"
#include "engine/base/files.h"
#include "engine/train/checkpoint_writer.h"
#include "engine/train/passes.h"
#include "engine/train/record/notices.h"
#include "engine/train/record/run_folder.h"
#include "engine/train/report/run_page.h"
#include "engine/train/start.h"
#include "kernels/device/host/memory.h"

namespace dp {

// The images that --bad-images skip has replaced, of all ranks.
class BadImages {
 public:
  // Adds what the data set has replaced since the last call, and returns what is new. With several ranks, every rank
  // calls it for the same data set.
  std::vector<std::string> collect(const Dataset& part, ProcessGroup* group) {
    std::vector<std::string> added;
    const auto replaced = part.replaced();
    if (!replaced) return added;
    const auto add = [&](const std::string& fault) {
      if (all_.insert(fault).second) added.push_back(fault);
    };
    if (group == nullptr) {
      for (const std::string& fault : *replaced) add(fault);
      return added;
    }
    std::set<std::string> unsent(replaced->begin(), replaced->end());
    for (const std::string& sent : sent_) unsent.erase(sent);
    for (bool more = true; more;) {
      more = false;
      for (const std::string& text : group->exchange(packed(unsent))) {
        more = more || !text.empty();
        for (const std::string& fault : lines_of(text)) add(fault);
      }
    }
    return added;
  }
  // Adds images that an earlier part of the run has listed, one a line.
  void add_listed(const std::string& text) {
    for (const std::string& fault : lines_of(text)) all_.insert(fault);
  }
  const std::set<std::string>& all() const { return all_; }
  std::string text() const {
    std::string text;
    for (const std::string& fault : all_) text += fault + "\n";
    return text;
  }

 private:
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      lines.push_back(text.substr(begin, end - begin));
    return lines;
  }
  // Moves as many faults to sent_ as an exchange can hold.
  std::string packed(std::set<std::string>& unsent) {
    constexpr std::size_t kLongest = 32 << 10;
    std::string text;
    while (!unsent.empty() && (text.empty() || text.size() + unsent.begin()->size() < kLongest)) {
      text += *unsent.begin() + "\n";
      sent_.insert(unsent.extract(unsent.begin()));
    }
    return text;
  }

  std::set<std::string> all_, sent_;
};

// `file`: where all are listed; may be empty.
inline std::string to_notice(const std::vector<std::string>& added, const std::string& file) {
  constexpr std::size_t kShown = 5;
  std::string text = fmt::format("{} bad image{} skipped", added.size(), added.size() == 1 ? " was" : "s were");
  if (!file.empty()) text += fmt::format(", listed in {}", file);
  for (std::size_t i = 0; i < std::min(added.size(), kShown); ++i) text += (i == 0 ? ": " : "; ") + added[i];
  return text + (added.size() > kShown ? "; ..." : "");
}

class TrainingRun {
 public:
  // All arguments must outlive this object. `given`: the options to record; in `options`, automatic choices are made.
  // `environment`: a part of env.json.
  TrainingRun(DataParallel& net, Loader& train, Loader& test, const TrainerOptions& given,
              const TrainerOptions& options, const nlohmann::ordered_json& environment,
              const TrainerCallbacks& callbacks);

  RunSummary execute();

 private:
  void begin();
  void continue_from(Resumed& resumed);
  void train();
  void train_epoch();
  const Batch* take_batch(bool first);
  void wait_ended();
  void judge_skipped(std::int64_t first);  // `first`: the first batch that was trained in this epoch
  void train_one_step(const Batch& batch);
  bool evaluate();  // the weights and, if any, their moving average; false if stopped
  bool evaluate_once(bool average);
  void report_epoch();
  void collect();  // waits for the devices and adds up their statistics
  void report();
  // Copies the state and starts to write it as these checkpoints. must: waits, and a failed write is an error instead
  // of a notice.
  void save(const std::vector<std::string>& names, bool must);
  void take_written(bool wait, bool must);  // reports the checkpoints that were written meanwhile
  void settle(bool must);                   // waits for the checkpoints in flight, on every rank
  void record(const nlohmann::ordered_json& metrics);
  RunSummary conclude();  // writes the summary and the last records
  // After an error outside the replicas: saves and concludes, if this run has trained and the weights can be read.
  void keep_finished_steps(const std::string& failure) noexcept;
  void report_kept() const;
  void list_bad_images();  // that were replaced since the last call
  bool trained() const { return state_.step > first_step_; }
  void begin_folder(std::optional<std::int64_t> continued_from);
  RunSummary summary() const;

  bool out_of_steps() const { return most_steps_ > 0 && state_.step >= most_steps_; }
  bool out_of_patience() const { return options_.patience > 0 && state_.since_best >= options_.patience; }
  std::string end() const;  // see RunSummary::end
  bool finished() const { return state_.epoch >= options_.epochs || out_of_steps() || ended_ || out_of_patience(); }

  DataParallel& net_;
  Loader& train_;
  Loader& test_;
  const TrainerOptions& given_;
  const TrainerOptions& options_;
  nlohmann::ordered_json environment_;
  const TrainerCallbacks& callbacks_;
  ProcessGroup* const group_;  // null without ranks
  Notices notices_;
  RunFolder folder_;  // writes on rank 0 only
  RunPage page_;
  bool writes_ = false;                 // whether rank 0 writes a run folder
  FileHandle summary_end_, trace_end_;  // see require_writable()
  StopRequest stop_, finish_;
  BadImages bad_images_;
  std::optional<kernels::AddressSpaceOfRun> address_space_;
  nlohmann::ordered_json config_;
  nlohmann::ordered_json resumption_;  // its line of metrics.jsonl; null in a new run
  std::int64_t batches_;               // per epoch
  std::int64_t most_steps_;            // 0: no limit

  // batch_in_epoch is `batches_` between an epoch's last step and the end of its evaluation, so that a run resumed
  // there still evaluates.
  TrainState state_;
  Meter meter_;
  SaveTimer save_timer_;
  double seconds_before_ = 0;  // of training, before the run was resumed
  Stats recent_, epoch_stats_;
  EpochReport epoch_;
  std::vector<PhaseTimes> phases_;
  std::optional<EvalReport> last_eval_;
  CheckpointWriter writer_;   // on rank 0
  bool in_flight_ = false;    // save() has started a write that settle() has not waited for
  bool last_failed_ = false;  // the last write of `last`
  bool unsaved_ = true;       // whether something happened since the last save() of `last`, or its write failed
  bool loading_noticed_ = false;
  std::int64_t first_step_ = 0;  // of this part of the run
  bool interrupted_ = false;
  std::string failure_;       // the message of the error that ends the run
  bool cannot_save_ = false;  // a save has failed, or the weights are those of their average
  bool ended_ = false;        // by TrainerOptions::finish
  bool alone_ =
      false;  // rank 0 has stopped while other ranks wait for it in a step: nothing is exchanged with them any more
  std::set<bool> recorded_evaluations_;  // of the step from which the run continues, see RunFolder::evaluated_at()
  std::int64_t continued_from_ = -1;     // that step
  double lr_ = 0;
  std::string good_checkpoint_;  // the last one written or resumed from
};

}  // namespace dp
