#include "engine/train/check_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "dp/error.h"
#include "dp/run_options.h"
#include "engine/optimizer/optimizer_options.h"

namespace dp {
namespace {

void require(bool good, const std::string& what) {
  if (!good) throw Error(ErrorCode::usage, what);
}

}  // namespace

void check_options(const Model& model, const DatasetPair& data, const TrainerOptions& options) {
  run_options().check(options);
  require(!options.profile || options.parallel.trace_steps > 0, "profile requires traced steps; set trace_steps");
  require(
      !options.measure_split || !(options.parallel.deterministic || options.parallel.logical_shards > 0),
      "--split auto excludes --deterministic and --logical-shards: the shards would depend on timings; give weights "
      "such as --split 3:1");
  require(!options.measure_split || options.parallel.split != Split::chunk, "measure_split excludes Split::chunk");
  require(!options.measure_split || !options.parallel.process_group,
          "--split auto requires one process (--engine dp): ranks have shards of equal size");
  require(options.eval_every > 0 || options.patience == 0,
          "--patience counts evaluations, and --no-eval leaves them out; remove one of both");
  engine::check(options.optimizer);
  require(std::ranges::is_sorted(options.schedule.milestones),
          "--lr-milestones: the epochs must be in ascending order");
  require(data.train != nullptr && data.test != nullptr, "the trainer requires a training set and a test set");
  for (const auto& part : {data.train, data.test}) {
    require(part->image_shape() == model.input(),
            fmt::format(
                "model '{}' requires images of {}, but the data set's images are {}; choose another model or data set",
                model.name(), to_string(model.input()), to_string(part->image_shape())));
    require(model.output().rank() == 1 && model.output()[0] >= part->classes(),
            fmt::format("model '{}' outputs {}, but the data set has {} classes", model.name(),
                        to_string(model.output()), part->classes()));
    const auto names = static_cast<std::int64_t>(part->class_names().size());
    require(names == 0 || names == part->classes(),
            fmt::format("the data set has {} classes, but names {}; name all or none", part->classes(), names));
  }
  const auto train_names = data.train->class_names(), test_names = data.test->class_names();
  require(
      train_names.empty() || test_names.empty() || train_names == test_names,
      "the training set and the test set name their classes differently; give both the same names in the same order");
}

}  // namespace dp
