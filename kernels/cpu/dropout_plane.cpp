#include "kernels/cpu/dropout_plane.h"

#include <algorithm>

#include "dp/random.h"
#include "kernels/cpu/lanes.h"

namespace dp::kernels {

float dropout_scale(const DropoutSpec& spec) { return static_cast<float>(1.0 / (1.0 - static_cast<double>(spec.p))); }

// Key and counter as dp::dropout_words lays them out.
DropoutWords::DropoutWords(const StepInputs& s, std::uint32_t layer, std::int64_t sample_index)
    : key0_(static_cast<std::uint32_t>(s.seed) ^ (static_cast<std::uint32_t>(RandomUse::dropout) << 28)),
      key1_(static_cast<std::uint32_t>(s.seed >> 32) ^ (layer * 0x85EBCA6Bu)) {
  const std::uint64_t sample = static_cast<std::uint64_t>(sample_index);
  counter_ = {static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(s.step),
              static_cast<std::uint32_t>(sample >> 32) ^ (static_cast<std::uint32_t>(s.step >> 32) << 8)};
}

void DropoutWords::generate(const std::array<std::uint32_t, kQuads>& quads, Words& words) const {
  const std::uint32_t c1 = counter_[0], c2 = counter_[1], c3 = counter_[2];
  const std::uint32_t* first = quads.data();
  std::uint32_t *w0 = words[0].data(), *w1 = words[1].data(), *w2 = words[2].data(), *w3 = words[3].data();
#pragma omp simd
  for (int lane = 0; lane < kQuads; ++lane) {
    std::uint32_t a = first[lane], b = c1, c = c2, d = c3, k0 = key0_, k1 = key1_;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p = std::uint64_t{0xD2511F53u} * a, q = std::uint64_t{0xCD9E8D57u} * c;
      a = static_cast<std::uint32_t>(q >> 32) ^ b ^ k0;
      c = static_cast<std::uint32_t>(p >> 32) ^ d ^ k1;
      b = static_cast<std::uint32_t>(q);
      d = static_cast<std::uint32_t>(p);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    w0[lane] = a, w1[lane] = b, w2[lane] = c, w3[lane] = d;
  }
}

DropoutPlane::DropoutPlane(const DropoutSpec& spec, const ActivationView& view)
    : threshold_(drop_threshold(spec.p)),
      scale_(dropout_scale(spec)),
      channels_(view.c),
      block_(view.block),
      pixels_(view.h * view.w) {}

void DropoutPlane::apply(const DropoutWords& words, std::int64_t block_index, const float* x, float* y,
                         std::uint8_t* mask) const {
  const bool lanes = (block_ == 8 || block_ == 16) && pixels_ % 4 == 0;
  lanes ? by_channels(words, block_index, x, y, mask) : by_elements(words, block_index, x, y, mask);
}

// A lane is a channel: word j of its quad belongs to pixel 4*quad + j, so the words come in the order of the memory.
void DropoutPlane::by_channels(const DropoutWords& words, std::int64_t block_index, const float* x, float* y,
                               std::uint8_t* mask) const {
  const std::int64_t quads_per_plane = pixels_ / 4, side_by_side = DropoutWords::kQuads / block_;
  std::array<std::uint32_t, DropoutWords::kQuads> quads;
  DropoutWords::Words w;
  for (std::int64_t quad = 0; quad < quads_per_plane; quad += side_by_side) {
    for (std::int64_t lane = 0; lane < DropoutWords::kQuads; ++lane)
      quads[static_cast<std::size_t>(lane)] = static_cast<std::uint32_t>(
          (block_index * block_ + lane % block_) * quads_per_plane + quad + lane / block_);
    words.generate(quads, w);
    for (std::int64_t side = 0; side < std::min(side_by_side, quads_per_plane - quad); ++side)
      for (std::int64_t j = 0; j < 4; ++j) {
        const std::int64_t at = ((quad + side) * 4 + j) * block_;
        const std::uint32_t* word = w[static_cast<std::size_t>(j)].data() + side * block_;
        using V = Lanes<8>;
        for (std::int64_t lane = 0; lane < block_; lane += 8) {
          const V::Ints kept = *reinterpret_cast<const V::Words*>(word + lane) >= threshold_;
          V::store(y + at + lane, kept ? V::load(x + at + lane) * scale_ : V::Floats{});
          if (mask != nullptr) V::store_bytes(mask + at + lane, V::load_bytes(mask + at + lane) | (~kept & 255));
        }
      }
  }
}

void DropoutPlane::by_elements(const DropoutWords& words, std::int64_t block_index, const float* x, float* y,
                               std::uint8_t* mask) const {
  constexpr std::int64_t kElements = DropoutWords::kQuads * 4;
  std::array<std::uint32_t, DropoutWords::kQuads> quads;
  DropoutWords::Words w;
  std::array<std::uint32_t, kElements> kept;
  for (std::int64_t lane = 0; lane < block_; ++lane) {
    const std::int64_t channel = block_index * block_ + lane;
    if (channel >= channels_) {   // padding
      for (std::int64_t pixel = 0; pixel < pixels_; ++pixel) y[pixel * block_ + lane] = 0;
      continue;
    }
    const std::int64_t first = channel * pixels_, end = first + pixels_;
    for (std::int64_t begin = first / 4 * 4; begin < end; begin += kElements) {
      for (std::size_t i = 0; i < quads.size(); ++i) quads[i] = static_cast<std::uint32_t>(begin / 4) + static_cast<std::uint32_t>(i);
      words.generate(quads, w);
      for (std::size_t i = 0; i < quads.size(); ++i)
        for (std::size_t j = 0; j < 4; ++j) kept[4 * i + j] = w[j][i] >= threshold_;
      const std::int64_t from = std::max(begin, first), to = std::min(begin + kElements, end);
      for (std::int64_t e = from; e < to; ++e) {
        const std::int64_t at = (e - first) * block_ + lane;
        const bool keep = kept[static_cast<std::size_t>(e - begin)] != 0;
        y[at] = keep ? x[at] * scale_ : 0.f;
        if (mask != nullptr && !keep) mask[at] = 255;
      }
    }
  }
}

}  // namespace dp::kernels
