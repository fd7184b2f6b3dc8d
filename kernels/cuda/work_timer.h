// Seconds of one stream's work by label, measured by the device: an event wherever labelled work begins or ends, read once it has been
// reached. Nothing waits for the device; work that lies between two events counts with the gaps between its launches.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/owner.h"

namespace dp::kernels::cuda {

class WorkTimer {
 public:
  void label(std::size_t label) { label_ = label; }
  // Before work is enqueued on `stream`, always the same one and of the current device.
  void work(cudaStream_t stream) {
    if (open_ != label_) mark(label_, stream);
  }
  // Before the stream waits for another, or rests.
  void pause(cudaStream_t stream) {
    if (open_ != kNothing) mark(kNothing, stream);
  }
  // Adds what has been reached since the last call.
  void take(LabelSeconds& sum);

 private:
  static constexpr std::size_t kNothing = kLabels;
  static constexpr std::uint64_t kMarks = 256;  // of about two steps; what finds no place is not measured
  struct Mark {
    EventHandle event;    // made when first used
    std::size_t label{};  // of the work behind it
  };

  void mark(std::size_t label, cudaStream_t stream);
  void read_reached();
  Mark& at(std::uint64_t number) { return marks_[number % kMarks]; }

  std::array<Mark, kMarks> marks_;
  std::uint64_t written_ = 0, read_ = 0;
  std::size_t label_ = 0, open_ = kNothing;  // open_: what is measured now
  LabelSeconds seconds_{};
};

}  // namespace dp::kernels::cuda
