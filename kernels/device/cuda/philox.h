// Random numbers on the device, the same words as in dp/random.h.
#pragma once

#include <cstdint>

#include "device_code.h"
#include "dp/random.h"
#include "kernels/ops.h"
#include "kernels/step_state.h"

namespace dp::kernels::cuda {

__device__ __forceinline__ uint4 philox_words(uint4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x, b = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = make_uint4(static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ key0, static_cast<std::uint32_t>(b),
                         static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ key1, static_cast<std::uint32_t>(a));
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& words, unsigned index) {
  return index < 2 ? index == 0 ? words.x : words.y : index == 2 ? words.z : words.w;
}

// A DropoutSpec in the form that kernels use.
struct Dropping {
  std::uint32_t layer = 0, threshold = 0;
  float scale = 1;
};
inline Dropping dropping(const DropoutSpec& spec) {
  return {spec.layer, drop_threshold(spec.p), static_cast<float>(1.0 / (1.0 - static_cast<double>(spec.p)))};
}

// Random words of elements 4*quad .. 4*quad+3 of a sample, counted in C,H,W order (dp::dropout_words).
__device__ __forceinline__ uint4 dropout_words_of(const StepInputs& inputs, std::uint32_t layer, std::int64_t sample,
                                                  std::uint32_t quad) {
  const std::uint32_t use = static_cast<std::uint32_t>(RandomUse::dropout) << 28;
  const std::uint32_t key0 = static_cast<std::uint32_t>(inputs.seed) ^ use;
  const std::uint32_t key1 = static_cast<std::uint32_t>(inputs.seed >> 32) ^ (layer * 0x85EBCA6Bu);
  const std::uint64_t index = static_cast<std::uint64_t>(sample);
  return philox_words(
      make_uint4(quad, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(inputs.step),
                 static_cast<std::uint32_t>(index >> 32) ^ (static_cast<std::uint32_t>(inputs.step >> 32) << 8)),
      key0, key1);
}

__device__ __forceinline__ bool dropout_keeps(const StepInputs& inputs, const Dropping& dropping, std::int64_t sample,
                                              std::uint32_t element) {
  return word_of(dropout_words_of(inputs, dropping.layer, sample, element / 4), element % 4) >= dropping.threshold;
}

// Generates the same sequence as dp::Random.
class DeviceRandom {
 public:
  __device__ DeviceRandom(std::uint64_t seed, RandomUse use, std::uint64_t a, std::uint64_t b)
      : key0_(static_cast<std::uint32_t>(seed) ^ (static_cast<std::uint32_t>(use) << 28)),
        key1_(static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(b >> 32)),
        counter_(make_uint4(0, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                            static_cast<std::uint32_t>(b))),
        words_(make_uint4(0, 0, 0, 0)) {}

  __device__ std::uint32_t next() {
    if (used_ == 4) {
      words_ = philox_words(counter_, key0_, key1_);
      ++counter_.x;
      used_ = 0;
    }
    return word_of(words_, used_++);
  }
  __device__ std::uint32_t below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{next()} * bound;
    const std::uint32_t threshold = (0u - bound) % bound;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * bound;
    return static_cast<std::uint32_t>(product >> 32);
  }

 private:
  std::uint32_t key0_, key1_;
  uint4 counter_, words_;
  unsigned used_ = 4;
};

}  // namespace dp::kernels::cuda
