// The start of a run, new or from a checkpoint, and its list of bad images.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "dp/error.h"
#include "dp/report.h"
#include "engine/base/text.h"
#include "engine/observe/crash_record.h"
#include "engine/train/data_identity.h"
#include "engine/train/host_memory.h"
#include "engine/train/passes.h"
#include "engine/train/record/records.h"
#include "engine/train/record/run_config.h"
#include "engine/train/start.h"
#include "engine/train/training_run.h"

namespace dp {
namespace {

std::string text_of(const nlohmann::ordered_json& config) {
  return config.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

constexpr std::int64_t kMuchTest = 4;  // times the training images

bool had_average(const Resumed& resumed) { return !resumed.checkpoint.average.empty(); }

// Converts the position in the epoch to the batch size of this run, whose epoch has `batches` batches.
void convert_position(Resumed& resumed, const TrainerOptions& options, std::int64_t images, std::int64_t batches) {
  TrainState& had = resumed.checkpoint.state;
  const std::int64_t wanted = options.batch_size;
  if (had.global_batch == wanted) return;
  const std::int64_t all =
      options.drop_last ? images / had.global_batch : (images + had.global_batch - 1) / had.global_batch;
  const std::int64_t seen = had.batch_in_epoch * had.global_batch;
  if (had.batch_in_epoch >= all)
    had.batch_in_epoch = batches;  // the epoch's evaluation is due
  else if (seen % wanted == 0)
    had.batch_in_epoch = seen / wanted;
  else
    throw Error(ErrorCode::usage,
                fmt::format("checkpoint '{}' is {} images into an epoch, inside a batch of {}; use a batch size that "
                            "divides {}, or a checkpoint from the end of an epoch",
                            resumed.folder, seen, wanted, seen));
}

}  // namespace

void TrainingRun::begin() {
  if (!options_.summary_file.empty()) summary_end_ = require_writable(options_.summary_file);
  if (!options_.trace_file.empty() && (group_ == nullptr || group_->leads()))
    trace_end_ = require_writable(options_.trace_file);
  config_ = run_config(state_.model, given_, options_);
  state_.config = text_of(config_);
  engine::describe_run_in_crash_record(text_of({{"environment", environment_}, {"options", config_}}));
  if (group_ != nullptr) {
    nlohmann::ordered_json all = config_;  // and the options that determine when ranks exchange data
    all["dry-run"] = options_.dry_run;
    all["trace"] = !options_.trace_file.empty();
    require_same_options(*group_, all);
    require_same_data(*group_, *state_.data);
  }
  const Notice tell = [this](const std::string& text) { notices_.tell(text); };
  std::optional<Resumed> resumed;
  if (group_ == nullptr || group_->leads()) {
    const Busy busy(group_);
    resumed = find_resumed(options_, folder_.writes(), tell);
  }
  if (resumed) continue_from(*resumed);
  const std::optional<std::int64_t> continued_from =
      resumed && folder_.owns(resumed->folder) ? std::optional(resumed->checkpoint.state.step) : std::nullopt;
  const Start start = start_from(net_, options_, resumed, recorded_names(test_.dataset()), folder_.writes(), tell);
  state_.step = start.step, state_.skipped = start.skipped;
  state_.epoch = start.epoch, state_.batch_in_epoch = start.batch_in_epoch;
  state_.best_top1 = start.best_top1, state_.best_loss = start.best_loss, state_.since_best = start.since_best;
  if (options_.schedule.kind == ScheduleKind::plateau) state_.plateau = start.plateau;
  writes_ = start.writes;
  if (!continued_from && folder_.has_checkpoints())
    throw Error(
        ErrorCode::usage,
        "'" + folder_.path() + "' already contains a run; continue with --resume auto, or choose another --output-dir");
  if (options_.dry_run) most_steps_ = state_.step + 1;
  const std::int64_t trained = (most_steps_ - state_.step) * options_.batch_size, tested = test_.dataset().size();
  if (trained > 0 && !options_.dry_run && options_.eval_every > 0 && tested > kMuchTest * trained)
    notices_.tell(fmt::format("{} images are evaluated after the {} steps; --no-eval leaves that out",
                              with_separators(tested), most_steps_ - state_.step));
  prepare_batches(net_, &train_, test_, options_.optimizer, callbacks_.on_work);
  if (writes_) page_.store_logits(net_, test_, options_);
  address_space_.emplace(bytes_of_copies(net_.model(), options_, /*training=*/true));
  if (callbacks_.on_start) callbacks_.on_start(net_, options_);
  begin_folder(continued_from);
}

void TrainingRun::begin_folder(std::optional<std::int64_t> continued_from) {
  if (!folder_.writes()) return;
  if (continued_from) {
    continued_from_ = *continued_from;
    recorded_evaluations_ = folder_.evaluated_at(continued_from_);
  }
  // A finished run whose evaluation is recorded gets no further records. Its checkpoint stays if it is `last`.
  const bool evaluated =
      options_.eval_every == 0 ||
      (recorded_evaluations_.contains(false) && (!options_.parallel.ema_decay || recorded_evaluations_.contains(true)));
  const bool adds = !continued_from || !finished() || !evaluated;
  if (!adds) unsaved_ = good_checkpoint_ != folder_.checkpoint("last");
  const std::string bad_images = folder_.path() + "/bad_images.txt";
  if (std::ifstream listed(bad_images); continued_from && listed)
    bad_images_.add_listed({std::istreambuf_iterator<char>(listed), {}});
  const nlohmann::ordered_json data = to_record(*state_.data);
  environment_["data"]["identity"] = data;
  const std::int64_t all = options_.epochs * batches_;
  environment_["last_step"] = most_steps_ > 0 ? std::min(most_steps_, all) : all;
  environment_["global_batch"] = options_.batch_size;
  folder_.begin(provenance_comment(environment_) + to_toml(config_) + to_toml({{"data", data}}), continued_from, adds);
  seconds_before_ = folder_.seconds_train();
  add_memory(environment_, net_);
  notices_.attempt([this] { add_environment(folder_.path(), environment_); });
  if (!adds) return;
  notices_.warn_unless_empty(folder_.space_warning(checkpoint_bytes(net_.model(), options_)));
  notices_.attempt([this] {
    folder_.events().add_options(config_);
    Scalars memory;
    constexpr double kMebibyte = 1048576;
    const int stages = options_.parallel.pipeline.stages;
    for (int device = 0; device < net_.size(); ++device) {
      const std::string stage = stages > 1 ? fmt::format(" stage {}", device % stages) : std::string();
      memory.emplace_back(fmt::format("Memory/replica {}{} (MiB)", device / stages, stage),
                          static_cast<double>(net_.memory_use(device).total()) / kMebibyte);
    }
    folder_.events().add(state_.step, memory);
  });
  if (!resumption_.is_null()) record(resumption_);
}

void TrainingRun::list_bad_images() {
  ProcessGroup* const others = alone_ ? nullptr : group_;
  std::vector<std::string> added = bad_images_.collect(train_.dataset(), others);
  for (std::string& fault : bad_images_.collect(test_.dataset(), others)) added.push_back(std::move(fault));
  if (added.empty()) return;
  const std::string file = folder_.writes() ? folder_.path() + "/bad_images.txt" : "";
  if (folder_.writes()) notices_.attempt([&] { write_file_atomically(file, bad_images_.text()); });
  notices_.tell(to_notice(added, file));
}

void TrainingRun::continue_from(Resumed& resumed) {
  convert_position(resumed, options_, train_.dataset().size(), batches_);
  const TrainState& had = resumed.checkpoint.state;
  const auto before = nlohmann::ordered_json::parse(had.config, nullptr, false);
  if (before.is_object()) continue_record(config_, before);
  state_.config = text_of(config_);
  require_same_run(resumed, state_, false);
  const bool inside_epoch = had.batch_in_epoch > 0 && had.batch_in_epoch < batches_;
  require_same_data(resumed, options_, *state_.data, inside_epoch,
                    [this](const std::string& text) { notices_.tell(text); });
  if (had.batch_in_epoch > batches_)
    throw Error(
        ErrorCode::usage,
        fmt::format(
            "checkpoint '{}' is at batch {}, but an epoch of this run has {} batches; resume with the same data "
            "set and the same setting of --drop-last",
            resumed.folder, had.batch_in_epoch, batches_));
  good_checkpoint_ = resumed.folder;
  notices_.tell(fmt::format("resumed from '{}' at step {}, epoch {}, batch {}", resumed.folder, had.step, had.epoch,
                            had.batch_in_epoch));
  std::vector<ChangedOption> changes;
  if (before.is_object()) changes = changed_options(before, config_);
  for (const ChangedOption& change : changes) notices_.tell(to_text(change, options_.given_by));
  if (const auto devices = changed_devices(before, config_)) {
    const bool same_bits = options_.parallel.logical_shards > 0;
    notices_.tell(fmt::format("devices changed from {} to {}{}", devices->before.get<std::string>(),
                              devices->now.get<std::string>(),
                              same_bits ? "" : ": rounding may differ; name the same devices for the same bits"));
    changes.push_back(*devices);
  }
  resumption_ = to_record(had, resumed.folder, changes, options_.given_by);
  if (had_average(resumed) && !options_.parallel.ema_decay)
    notices_.tell("the checkpoint's moving average is ignored; --model-ema continues it");
  if (!had_average(resumed) && options_.parallel.ema_decay)
    notices_.tell("the checkpoint has no moving average; a new one starts from its weights");
}

}  // namespace dp
