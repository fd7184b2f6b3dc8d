#include "engine/train/start.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "dp/error.h"
#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

Start from_first(ProcessGroup& group, const Start& mine) {
  static_assert(std::is_trivially_copyable_v<Start>);
  const std::string text = group.from_first({reinterpret_cast<const char*>(&mine), sizeof mine});
  Start first;
  if (text.size() != sizeof first)
    throw Error(ErrorCode::usage, "the ranks run different builds of the program; start the same build on every host");
  std::memcpy(&first, text.data(), sizeof first);
  return first;
}

// Takes part in the broadcasts of restore() and init_weights(), which run on rank 0.
void follow(DataParallel& net, const Start& start, const Optimizer& optimizer) {
  if (!start.resumed && !start.initialised) return;
  net.set_weights({});
  if (start.state) net.set_optimizer_state({std::string(name_of(optimizer)), start.updates});
  if (start.average && net.options().ema_decay) net.set_average_weights({});
  net.set_step_count(start.step);
}

}  // namespace

void require_same_options(ProcessGroup& group, nlohmann::ordered_json config) {
  for (const char* own :
       {"resolved", "workers", "threads-per-replica", "init", "init-partial", "images-on", "data-path"})
    config.erase(own);
  const auto first = parse_record<nlohmann::ordered_json>(group.from_first(config.dump()));
  for (const auto& [name, value] : config.items())
    if (!first.contains(name) || first.at(name) != value)
      throw Error(ErrorCode::usage, "rank " + std::to_string(group.rank()) + " was started with " + name + " " +
                                        value.dump() + ", rank 0 with " +
                                        (first.contains(name) ? first.at(name).dump() : std::string("none")) +
                                        "; start all ranks with the same options");
}

Start start_from(DataParallel& net, const TrainerOptions& options, const std::optional<Resumed>& resumed,
                 const std::vector<std::string>& classes, bool writes, const Notice& notice) {
  ProcessGroup* const group = net.options().process_group.get();
  const bool leads = group == nullptr || group->leads();
  Start start;
  start.writes = writes;
  if (leads && resumed) {
    const TrainState& had = resumed->checkpoint.state;
    start.step = had.step, start.skipped = had.skipped, start.epoch = had.epoch,
    start.batch_in_epoch = had.batch_in_epoch;
    start.best_top1 = had.best_top1, start.since_best = had.since_best;
    start.resumed = true;
    start.state = !resumed->checkpoint.optimizer.tensors.empty();
    start.updates = resumed->checkpoint.optimizer.updates;
    start.average = !resumed->checkpoint.average.empty();
    start.scaled = had.loss_scale.has_value();
    start.loss_scale = had.loss_scale.value_or(LossScale{});
  }
  start.initialised = !start.resumed && !options.init.empty();
  if (group != nullptr) start = from_first(*group, start);
  if (!leads) {
    follow(net, start, options.optimizer);
  } else if (resumed) {
    restore(net, *resumed);
  } else if (start.initialised) {
    init_weights(net, options, classes, notice);
  }
  if (start.scaled && net.options().amp == Amp::float16) net.set_loss_scale(start.loss_scale);
  return start;
}

}  // namespace dp
