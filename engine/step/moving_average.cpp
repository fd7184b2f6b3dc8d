#include "engine/step/moving_average.h"

#include <algorithm>

namespace dp::engine {

MovingAverage::MovingAverage(Replica& master, double decay, std::int64_t statistics_elements)
    : master_(master),
      decay_(decay),
      value_bytes_(master.arenas.table().bytes()),
      statistics_bytes_(static_cast<std::size_t>(statistics_elements) * size_of(master.arenas.table().type())) {
  values_ = master.device.allocate(value_bytes_, &MemoryUse::average);
  update_values_ = master.context().make_op(kernels::MovingAverage{master.arenas.table().size()});
  if (statistics_elements == 0) return;
  statistics_ = master.device.allocate(statistics_bytes_, &MemoryUse::average);
  update_statistics_ = master.context().make_op(kernels::MovingAverage{statistics_elements});
}

void MovingAverage::restart() {
  updates_ = 0;
  master_.compute().copy(values_->data(), master_.arenas.values(), value_bytes_);
  if (statistics_) master_.compute().copy(statistics_->data(), master_.arenas.running_statistics(), statistics_bytes_);
  master_.compute().synchronize();
}

void MovingAverage::update() {
  kernels::run_op<kernels::MovingAverage>(
      *update_values_, master_.compute(),
      {.x = master_.arenas.values(), .average = values_->data(), .inputs = master_.arenas.step_inputs()});
  if (statistics_)
    kernels::run_op<kernels::MovingAverage>(*update_statistics_, master_.compute(),
                                            {.x = master_.arenas.running_statistics(),
                                             .average = statistics_->data(),
                                             .inputs = master_.arenas.step_inputs()});
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
  if (statistics_) swap(master_.arenas.running_statistics(), *statistics_, statistics_bytes_);
}

}  // namespace dp::engine
