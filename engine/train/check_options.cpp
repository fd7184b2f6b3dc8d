#include "engine/train/check_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"

namespace dp {
namespace {

void require(bool good, const std::string& what) {
  if (!good) throw Error(ErrorCode::usage, what);
}

void at_least(std::int64_t value, std::int64_t lowest, const char* name) {
  require(value >= lowest, fmt::format("{} is {}; it must be at least {}", name, value, lowest));
}

void non_negative(double value, const char* name) {
  require(std::isfinite(value) && value >= 0, fmt::format("{} is {}; it must be finite and at least 0", name, value));
}

void check_schedule(const Schedule& schedule) {
  require(std::isfinite(schedule.step_size) && schedule.step_size > 0,
          fmt::format("the schedule's step size is {}; it must be above 0 epochs", schedule.step_size));
  non_negative(schedule.gamma, "the schedule's gamma");
  non_negative(schedule.warmup_epochs, "the warm-up");
  for (const double milestone : schedule.milestones) non_negative(milestone, "a milestone");
  require(std::is_sorted(schedule.milestones.begin(), schedule.milestones.end()),
          "the milestones of the learning rate must ascend");
}

}  // namespace

void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options) {
  at_least(options.epochs, 1, "the number of epochs");
  at_least(options.max_steps, 0, "the largest number of steps");
  at_least(options.batch_size, 1, "the batch size");
  at_least(options.workers, 0, "the number of loader threads");
  at_least(options.print_freq, 0, "the print frequency");
  at_least(options.save_every_epochs, 0, "the number of epochs between checkpoints");
  at_least(options.save_every_steps, 0, "the number of steps between checkpoints");
  at_least(options.checkpoint_hist, 0, "the number of checkpoints to keep");
  require(!options.profile || options.parallel.trace_steps > 0, "profile requires traced steps; set trace_steps");
  engine::check(options.optimizer);
  check_schedule(options.schedule);
  require(data.train != nullptr && data.test != nullptr, "the trainer requires a training set and a test set");
  for (const auto& part : {data.train, data.test}) {
    require(part->image_shape() == model.input(),
            fmt::format(
                "model '{}' requires images of {}, but the data set's images are {}; choose another model or data set",
                model.name(), to_string(model.input()), to_string(part->image_shape())));
    require(model.output().rank() == 1 && model.output()[0] >= part->classes(),
            fmt::format("model '{}' outputs {}, but the data set has {} classes", model.name(),
                        to_string(model.output()), part->classes()));
  }
}

}  // namespace dp
