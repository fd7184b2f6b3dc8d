#include "engine/step/moving_average.h"

#include <algorithm>

namespace dp::engine {

MovingAverage::MovingAverage(Replica& master, double decay, std::int64_t buffer_elements)
    : master_(master),
      decay_(decay),
      value_bytes_(master.arenas.table().bytes()),
      buffer_bytes_(static_cast<std::size_t>(buffer_elements) * size_of(master.arenas.table().type())) {
  values_ = master.device.allocate(value_bytes_, &MemoryUse::average);
  update_values_ = master.context().make_op(kernels::MovingAverage{master.arenas.table().size()});
  if (buffer_elements == 0) return;
  buffers_ = master.device.allocate(buffer_bytes_, &MemoryUse::average);
  update_buffers_ = master.context().make_op(kernels::MovingAverage{buffer_elements});
}

void MovingAverage::restart() {
  updates_ = 0;
  master_.compute().copy(values_->data(), master_.arenas.values(), value_bytes_);
  if (buffers_) master_.compute().copy(buffers_->data(), master_.arenas.buffers(), buffer_bytes_);
  master_.compute().synchronize();
}

void MovingAverage::update() {
  kernels::run_op<kernels::MovingAverage>(
      *update_values_, master_.compute(),
      {.x = master_.arenas.values(), .average = values_->data(), .inputs = master_.arenas.inputs()});
  if (buffers_)
    kernels::run_op<kernels::MovingAverage>(
        *update_buffers_, master_.compute(),
        {.x = master_.arenas.buffers(), .average = buffers_->data(), .inputs = master_.arenas.inputs()});
}

double MovingAverage::next_share() const {
  const double number = static_cast<double>(updates_) + 1;
  return 1 - std::min(decay_, (1 + number) / (10 + number));
}

void MovingAverage::swap() {
  const auto swap = [&](std::byte* a, kernels::Buffer& b, std::size_t bytes) {
    const auto third = master_.context().allocate(bytes);
    master_.compute().copy(third->data(), a, bytes);
    master_.compute().copy(a, b.data(), bytes);
    master_.compute().copy(b.data(), third->data(), bytes);
    master_.compute().synchronize();
  };
  swap(master_.arenas.values(), *values_, value_bytes_);
  if (buffers_) swap(master_.arenas.buffers(), *buffers_, buffer_bytes_);
}

}  // namespace dp::engine
