// The moving average of the weights and running statistics. The master stores it.
#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using engine::GradientSync;
using engine::Replica;
using NamedTensor = std::pair<std::string, Tensor>;

void DataParallel::State::make_average() {
  if (!options.ema_decay) return;
  on_master([&](Replica& master, GradientSync&) {
    average = std::make_unique<engine::MovingAverage>(master, *options.ema_decay, norms.buffer_size());
  });
}

// Sets the average to the current weights.
void DataParallel::State::restart_average() {
  if (!options.ema_decay) return;
  on_master([&](Replica&, GradientSync&) { average->restart(); });
}

void DataParallel::State::update_average(Replica& replica, GradientSync& gradient_sync) {
  if (average == nullptr || replica.rank() != 0) return;
  gradient_sync.wait_for_weights();
  average->update();
}

void DataParallel::swap_average() {
  State& s = *state_;
  if (!s.options.ema_decay) throw Error(ErrorCode::usage, "there is no moving average of the weights; set ema_decay");
  s.forward_rows = 0;
  s.wait_for_all();
  s.on_master([&](Replica&, GradientSync&) { s.average->swap(); });
  s.on_replicas([](Replica& replica, GradientSync& gradient_sync) {
    gradient_sync.broadcast_weights();
    replica.context().flush();
  });
  s.buffers_behind = true;
}

std::vector<NamedTensor> DataParallel::average_weights() {
  swap_average();
  auto tensors = weights();
  swap_average();
  return tensors;
}

void DataParallel::set_average_weights(const std::vector<NamedTensor>& tensors) {
  const std::int64_t tracked = state_->batches_tracked;
  swap_average();
  state_->import_arena(State::Arena::value, tensors);
  swap_average();
  state_->batches_tracked = tracked;
}

}  // namespace dp
