// Dropout of one plane (one sample, one block of channels), in any layout. Within a sample, the element's index in
// C,H,W order determines whether it is kept; the layout does not.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/ops.h"
#include "kernels/step_state.h"

namespace dp::kernels {

// dp::dropout_words for one sample, kQuads quads at a time.
class DropoutWords {
 public:
  static constexpr int kQuads = kPhiloxLanes;
  using Words = PhiloxLaneWords;  // [element of the quad][quad]

  DropoutWords(const StepInputs& step, std::uint32_t layer, std::int64_t sample);
  void generate(const std::array<std::uint32_t, kQuads>& quads, Words& words) const;

 private:
  std::uint32_t key0_, key1_;
  std::array<std::uint32_t, 3> counter_;
};

class DropoutPlane {
 public:
  DropoutPlane(const DropoutSpec& spec, const ActivationView& view);
  // y = kept ? x * scale : 0 for one plane; x, y and mask point to its first element. mask becomes 255 where the
  // element is dropped; it may be null. May run in place. T is float or BFloat16.
  template <typename T>
  void apply(const DropoutWords& words, std::int64_t block_index, const T* x, T* y, std::uint8_t* mask) const;

 private:
  template <int kWidth, int L, typename T>
  void by_channels(const DropoutWords& words, std::int64_t block_index, std::int64_t first, const T* x, T* y,
                   std::uint8_t* mask) const;
  template <typename T>
  void by_elements(const DropoutWords& words, std::int64_t block_index, const T* x, T* y, std::uint8_t* mask) const;

  std::uint32_t threshold_;
  float scale_;
  std::int64_t channels_, block_, pixels_;
};

float dropout_scale(const DropoutSpec& spec);

}  // namespace dp::kernels
