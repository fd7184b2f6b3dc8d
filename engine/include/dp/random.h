// Counter-based random numbers (Philox4x32-10, Salmon et al., SC 2011). A draw is a pure function of its key, so
// results are independent of devices, threads and the order of calls.
#pragma once

#include <array>
#include <cstdint>

namespace dp {

// Purpose of a stream of numbers. It is part of the key, so that streams never overlap.
enum class RandomUse : std::uint32_t {
  init = 1,
  shuffle = 2,
  augment = 3,
  dropout = 4,
  digits = 5,
  synthetic = 6,
  split = 7,
  flip = 8,
  mix = 9
};

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords philox4x32(PhiloxWords counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// In [0, 1), with 24 random bits.
constexpr float uniform_float(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Random words for dropout of elements 4*quad .. 4*quad+3 of one sample, counted in C,H,W order. An element is kept if
// its word >= drop_threshold(p). Key: (seed, layer, step, sample index in the dataset).
constexpr PhiloxWords dropout_words(std::uint64_t seed, std::uint32_t layer, std::uint64_t step, std::uint64_t sample,
                                    std::uint32_t quad) {
  const std::uint32_t key0 = static_cast<std::uint32_t>(seed) ^ (static_cast<std::uint32_t>(RandomUse::dropout) << 28);
  const std::uint32_t key1 = static_cast<std::uint32_t>(seed >> 32) ^ (layer * 0x85EBCA6Bu);
  return philox4x32({quad, static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step),
                     static_cast<std::uint32_t>(sample >> 32) ^ (static_cast<std::uint32_t>(step >> 32) << 8)},
                    key0, key1);
}
constexpr std::uint32_t drop_threshold(float p) { return static_cast<std::uint32_t>(static_cast<double>(p) * 0x1p32); }

// A sequential stream for one (seed, use, a, b): shuffles, initial weights, augmentation.
class Random {
 public:
  Random(std::uint64_t seed, RandomUse use, std::uint64_t a = 0, std::uint64_t b = 0)
      : key0_(static_cast<std::uint32_t>(seed) ^ (static_cast<std::uint32_t>(use) << 28)),
        key1_(static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(b >> 32)),
        counter_{0, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(b)} {
  }

  std::uint32_t next() {
    if (used_ == 4) {
      words_ = philox4x32(counter_, key0_, key1_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }
  float uniform() { return uniform_float(next()); }  // [0, 1)
  float uniform(float low, float high) {             // in double: float results would depend on fused multiply-add
    return static_cast<float>(double{low} + (double{high} - double{low}) * double{uniform()});
  }
  std::uint32_t below(std::uint32_t bound);  // [0, bound), unbiased; bound > 0
  float normal();                            // mean 0, deviation 1 (Box-Muller)

 private:
  std::uint32_t key0_, key1_;
  PhiloxWords counter_;
  PhiloxWords words_{};
  unsigned used_ = 4;
};

}  // namespace dp
