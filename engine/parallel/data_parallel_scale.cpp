// Reads and sets the loss scale, with float16. Every device stores a copy. The update of each step adapts it.
#include <cmath>

#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using engine::GradientSync;
using engine::Replica;

void DataParallel::State::set_loss_scale(const LossScale& scale) {
  on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    // The stored gradients keep the scale with which they were computed.
    const float last = step == 0 ? scale.scale : replica.read_scaler().last_scale;
    replica.set_scaler({.scale = scale.scale, .last_scale = last, .good_steps = scale.good_steps});
    replica.compute().synchronize();
  });
}

std::optional<LossScale> DataParallel::loss_scale() const {
  State& s = *state_;
  if (!s.scales_loss()) return std::nullopt;
  LossScale scale;
  s.on_replicas([&](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.synchronize();
    if (&replica != s.replicas.front().get()) return;
    const kernels::LossScaler scaler = replica.read_scaler();
    scale = {scaler.scale, scaler.good_steps};
  });
  return scale;
}

void DataParallel::set_loss_scale(const LossScale& scale) {
  if (!state_->scales_loss()) throw Error(ErrorCode::usage, "the loss is scaled only with float16 (amp)");
  if (!(std::isnormal(scale.scale) && scale.scale > 0))
    throw Error(ErrorCode::usage, "a loss scale is a positive number, not " + std::to_string(scale.scale));
  state_->set_loss_scale(scale);
}

}  // namespace dp
