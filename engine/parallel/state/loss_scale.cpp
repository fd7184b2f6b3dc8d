#include "engine/parallel/state/loss_scale.h"

namespace dp::engine {

LossScale read_loss_scale(ReplicaSet& team) {
  LossScale scale;
  team.on_first([&](Replica& first, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    const kernels::LossScaler scaler = first.read_scaler();
    scale = {scaler.scale, scaler.good_steps};
  });
  return scale;
}

void write_loss_scale(ReplicaSet& team, const LossScale& scale) {
  team.on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    // The stored gradients keep the scale with which they were computed.
    const float last = team.step == 0 ? scale.scale : replica.read_scaler().last_scale;
    replica.set_scaler({.scale = scale.scale, .last_scale = last, .good_steps = scale.good_steps});
    replica.compute().synchronize();
  });
}

}  // namespace dp::engine
