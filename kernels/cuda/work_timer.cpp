#include "kernels/cuda/work_timer.h"

#include "kernels/cuda/check.h"

namespace dp::kernels::cuda {

void WorkTimer::mark(std::size_t label, cudaStream_t stream) {
  // What begins needs a place for its end, too.
  if (kMarks - (written_ - read_) < 2) read_reached();
  if (kMarks - (written_ - read_) < 2) {
    if (open_ == kNothing) return;
    label = kNothing;
  }
  Mark& next = at(written_);
  if (!next.event) next.event = make_timed_event_handle();
  check(cudaEventRecord(next.event.get(), stream), "recording an event");
  next.label = open_ = label;
  ++written_;
}

void WorkTimer::read_reached() {
  for (; written_ - read_ >= 2; ++read_) {
    const Mark &begin = at(read_), &end = at(read_ + 1);
    if (begin.label == kNothing) continue;
    const cudaError_t state = cudaEventQuery(end.event.get());
    if (state == cudaErrorNotReady) return;
    check(state, "the work before an event");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event.get(), end.event.get()), "measuring work");
    seconds_[begin.label] += 1e-3 * static_cast<double>(milliseconds);
  }
}

void WorkTimer::take(LabelSeconds& sum) {
  read_reached();
  for (std::size_t label = 0; label < kLabels; ++label) sum[label] += seconds_[label];
  seconds_ = {};
}

}  // namespace dp::kernels::cuda
