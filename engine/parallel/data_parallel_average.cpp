// The moving average of the weights and running statistics, kept on the master.
#include "dp/error.h"
#include "engine/parallel/data_parallel_state.h"

namespace dp {

using engine::GradientSync;
using engine::Replica;
using NamedTensor = std::pair<std::string, Tensor>;

void DataParallel::State::make_average() {
  if (!options.ema_decay) return;
  on_master([&](Replica& master, GradientSync&) {
    average_values = master.allocate(table->bytes(), &MemoryUse::average);
    average_values_op = master.context().make_op(kernels::MovingAverage{table->size(), *options.ema_decay});
    if (norms.count() == 0) return;
    average_buffers = master.allocate(buffer_bytes(), &MemoryUse::average);
    average_buffers_op = master.context().make_op(kernels::MovingAverage{norms.buffer_size(), *options.ema_decay});
  });
}

// The average begins as the weights.
void DataParallel::State::restart_average() {
  if (!options.ema_decay) return;
  on_master([&](Replica& master, GradientSync&) {
    master.compute().copy(average_values->data(), master.values(), table->bytes());
    if (average_buffers) master.compute().copy(average_buffers->data(), master.buffers(), buffer_bytes());
    master.compute().synchronize();
  });
}

void DataParallel::State::update_average(Replica& replica, GradientSync& gradient_sync) {
  if (!options.ema_decay || replica.rank() != 0) return;
  gradient_sync.wait_for_weights();
  void* const values[] = {replica.values(), average_values->data()};
  average_values_op->run(replica.compute(), values, nullptr);
  if (!average_buffers) return;
  void* const buffers[] = {replica.buffers(), average_buffers->data()};
  average_buffers_op->run(replica.compute(), buffers, nullptr);
}

void DataParallel::swap_average() {
  State& s = *state_;
  if (!s.options.ema_decay) throw Error(ErrorCode::usage, "no moving average of the weights is kept; set ema_decay");
  s.forward_rows = 0;
  s.wait_for_all();
  s.on_master([&](Replica& master, GradientSync&) {
    const auto swap = [&](std::byte* a, kernels::Buffer& b, std::size_t bytes) {
      const auto third = master.context().allocate(bytes);
      master.compute().copy(third->data(), a, bytes);
      master.compute().copy(a, b.data(), bytes);
      master.compute().copy(b.data(), third->data(), bytes);
      master.compute().synchronize();
    };
    swap(master.values(), *s.average_values, s.table->bytes());
    if (s.average_buffers) swap(master.buffers(), *s.average_buffers, s.buffer_bytes());
  });
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
