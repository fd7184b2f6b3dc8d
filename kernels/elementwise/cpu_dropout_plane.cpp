#include "kernels/elementwise/cpu_dropout_plane.h"

#include <algorithm>

#include "dp/random.h"
#include "kernels/device/cpu/lanes.h"

namespace dp::kernels {

float dropout_scale(const DropoutSpec& spec) { return static_cast<float>(1.0 / (1.0 - static_cast<double>(spec.p))); }

// Key and counter as in dp::dropout_words.
DropoutWords::DropoutWords(const StepInputs& s, std::uint32_t layer, std::int64_t sample_index)
    : key0_(static_cast<std::uint32_t>(s.seed) ^ (static_cast<std::uint32_t>(RandomUse::dropout) << 28)),
      key1_(static_cast<std::uint32_t>(s.seed >> 32) ^ (layer * 0x85EBCA6Bu)) {
  const std::uint64_t sample = static_cast<std::uint64_t>(sample_index);
  counter_ = {static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(s.step),
              static_cast<std::uint32_t>(sample >> 32) ^ (static_cast<std::uint32_t>(s.step >> 32) << 8)};
}

void DropoutWords::generate(const std::array<std::uint32_t, kQuads>& quads, Words& words) const {
  philox_lanes(quads.data(), counter_[0], counter_[1], counter_[2], key0_, key1_, words);
}

DropoutPlane::DropoutPlane(const DropoutSpec& spec, const ActivationView& view)
    : threshold_(drop_threshold(spec.p)),
      scale_(dropout_scale(spec)),
      channels_(view.c),
      block_(view.block),
      pixels_(view.h * view.w) {}

template <typename T>
void DropoutPlane::apply(const DropoutWords& words, std::int64_t block_index, const T* x, T* y,
                         std::uint8_t* mask) const {
  if (pixels_ % 4 != 0 || block_ % 8 != 0) return by_elements(words, block_index, x, y, mask);
  const std::int64_t width = block_ % 16 == 0 ? 16 : 8;
  for (std::int64_t first = 0; first < block_; first += width)
    if (width == 16)
      by_channels<16, kLanes>(words, block_index, first, x, y, mask);
    else
      by_channels<8, std::min(8, kLanes)>(words, block_index, first, x, y, mask);
}

// Each SIMD lane is a channel, of kWidth channels from `first` on. Word j of its quad belongs to pixel 4*quad + j, so
// the words are in memory order.
template <int kWidth, int L, typename T>
void DropoutPlane::by_channels(const DropoutWords& words, std::int64_t block_index, std::int64_t first, const T* x,
                               T* y, std::uint8_t* mask) const {
  const std::int64_t quads_per_plane = pixels_ / 4, side_by_side = DropoutWords::kQuads / kWidth;
  std::array<std::uint32_t, DropoutWords::kQuads> quads;
  for (std::int64_t lane = 0; lane < DropoutWords::kQuads; ++lane)
    quads[static_cast<std::size_t>(lane)] =
        static_cast<std::uint32_t>((block_index * block_ + first + lane % kWidth) * quads_per_plane + lane / kWidth);
  DropoutWords::Words w;
  using V = Lanes<L>;
  for (std::int64_t quad = 0; quad < quads_per_plane; quad += side_by_side) {
    words.generate(quads, w);
    for (std::uint32_t& q : quads) q += static_cast<std::uint32_t>(side_by_side);
    const std::int64_t sides = std::min(side_by_side, quads_per_plane - quad);
    for (std::int64_t side = 0; side < sides; ++side)
      for (std::int64_t j = 0; j < 4; ++j) {
        const std::int64_t at = ((quad + side) * 4 + j) * block_ + first;
        const std::uint32_t* word = w[static_cast<std::size_t>(j)].data() + side * kWidth;
        for (std::int64_t lane = 0; lane < kWidth; lane += L) {
          const typename V::Ints kept = *reinterpret_cast<const typename V::Words*>(word + lane) >= threshold_;
          V::store(y + at + lane, kept ? V::load(x + at + lane) * scale_ : typename V::Floats{});
          if (mask != nullptr) V::store_bytes(mask + at + lane, V::load_bytes(mask + at + lane) | ~kept);
        }
      }
  }
}

template <typename T>
void DropoutPlane::by_elements(const DropoutWords& words, std::int64_t block_index, const T* x, T* y,
                               std::uint8_t* mask) const {
  constexpr std::int64_t kElements = DropoutWords::kQuads * 4;
  std::array<std::uint32_t, DropoutWords::kQuads> quads;
  DropoutWords::Words w;
  std::array<std::uint32_t, kElements> kept;
  for (std::int64_t lane = 0; lane < block_; ++lane) {
    const std::int64_t channel = block_index * block_ + lane;
    if (channel >= channels_) {  // padding
      for (std::int64_t pixel = 0; pixel < pixels_; ++pixel) y[pixel * block_ + lane] = T{};
      continue;
    }
    const std::int64_t first = channel * pixels_, end = first + pixels_;
    for (std::int64_t begin = first / 4 * 4; begin < end; begin += kElements) {
      for (std::size_t i = 0; i < quads.size(); ++i)
        quads[i] = static_cast<std::uint32_t>(begin / 4) + static_cast<std::uint32_t>(i);
      words.generate(quads, w);
      for (std::size_t i = 0; i < quads.size(); ++i)
        for (std::size_t j = 0; j < 4; ++j) kept[4 * i + j] = w[j][i] >= threshold_;
      const std::int64_t from = std::max(begin, first), to = std::min(begin + kElements, end);
      for (std::int64_t e = from; e < to; ++e) {
        const std::int64_t at = (e - first) * block_ + lane;
        const bool keep = kept.data()[e - begin] != 0;  // not checked element by element
        y[at] = keep ? from_float<T>(to_float(x[at]) * scale_) : T{};
        if (mask != nullptr && !keep) mask[at] = 255;
      }
    }
  }
}

template void DropoutPlane::apply(const DropoutWords&, std::int64_t, const float*, float*, std::uint8_t*) const;
template void DropoutPlane::apply(const DropoutWords&, std::int64_t, const BFloat16*, BFloat16*, std::uint8_t*) const;

}  // namespace dp::kernels
