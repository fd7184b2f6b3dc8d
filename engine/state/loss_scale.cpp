#include "engine/state/loss_scale.h"

namespace dp::engine {

LossScale read_loss_scale(Team& team) {
  LossScale scale;
  team.on_first_worker([&](Worker& first) {
    first.gradient_sync->wait_until_idle();
    const kernels::LossScaler scaler = first.arenas.read_scaler();
    scale = {scaler.scale, scaler.good_steps};
  });
  return scale;
}

void write_loss_scale(Team& team, const LossScale& scale) {
  team.on_workers([&](Worker& worker) {
    worker.gradient_sync->wait_until_idle();
    // The stored gradients keep the scale with which they were computed.
    const float last = team.step == 0 ? scale.scale : worker.arenas.read_scaler().last_scale;
    worker.arenas.set_scaler({.scale = scale.scale, .last_scale = last, .good_steps = scale.good_steps});
    worker.compute().synchronize();
  });
}

}  // namespace dp::engine
