#include "kernels/conv/cpu_amx.h"

#include <algorithm>
#include <cstring>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define DP_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace dp::kernels::amx {
namespace {

typedef std::uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

// Indices into two rows of 16 elements.
constexpr int lower_half(int distance, int c) { return (c & distance) == 0 ? c : 16 + c - distance; }
constexpr int upper_half(int distance, int c) { return (c & distance) == 0 ? c + distance : 16 + c; }

// One of four steps of a 16 x 16 transposition. In each block of 2 * kDistance x 2 * kDistance elements, it exchanges
// the upper right quarter with the lower left one.
template <int kDistance>
DP_AVX512 inline void swap_halves(Halves (&rows)[16]) {
#define DP_ALL(f)                                                                                             \
  f(kDistance, 0), f(kDistance, 1), f(kDistance, 2), f(kDistance, 3), f(kDistance, 4), f(kDistance, 5),       \
      f(kDistance, 6), f(kDistance, 7), f(kDistance, 8), f(kDistance, 9), f(kDistance, 10), f(kDistance, 11), \
      f(kDistance, 12), f(kDistance, 13), f(kDistance, 14), f(kDistance, 15)
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & kDistance) != 0) continue;
    const Halves a = rows[i], b = rows[i + kDistance];
    rows[i] = __builtin_shufflevector(a, b, DP_ALL(lower_half));
    rows[i + kDistance] = __builtin_shufflevector(a, b, DP_ALL(upper_half));
  }
#undef DP_ALL
}

// A mask of the first `count` elements, at most 32.
__mmask32 first_of(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? __mmask32{0} : (__mmask32{1} << count) - 1;
}

}  // namespace

DP_AVX512 void transpose(const Shapes& s, const Planar& planar, const BFloat16* x, std::int64_t step, BFloat16* to) {
  for (std::int64_t phase = 0; phase < s.stride; ++phase, to += kBlock * planar.plane) {
    const std::int64_t columns = (s.width - phase + s.stride - 1) / s.stride;
    // With stride 1 the rows are contiguous and are transposed as one.
    const bool joined = s.stride == 1;
    const std::int64_t rows = joined ? 1 : s.height, count = joined ? s.height * s.width : columns;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t col = 0; col < count; col += 16) {
        Halves tile[16];
        const BFloat16* from = x + (row * s.width + col * s.stride + phase) * step;
        for (std::int64_t i = 0; i < 16; ++i, from += s.stride * step)
          tile[i] = col + i < count ? *reinterpret_cast<const Halves*>(from) : Halves{};
        swap_halves<8>(tile);
        swap_halves<4>(tile);
        swap_halves<2>(tile);
        swap_halves<1>(tile);
        BFloat16* line = to + row * planar.pitch + col;
        for (int c = 0; c < 16; ++c, line += planar.plane) *reinterpret_cast<Halves*>(line) = tile[c];
      }
  }
}

DP_AVX512 void pack_rows(const Shapes& s, const Planar& planar, const Copy& copy, const BFloat16* planes,
                         BFloat16* to) {
  planes += copy.phase * kBlock * planar.plane + copy.shift;
  for (std::int64_t at = 0; at < s.out_width; at += 32) {
    const __mmask32 wanted = first_of(s.out_width - at),
                    found = wanted & first_of(copy.columns - copy.shift - at) & ~first_of(-copy.shift - at);
    for (std::int64_t c = 0; c < kBlock; ++c) {
      BFloat16* line = to + c * s.line + at;
      for (std::int64_t i = 0; i < s.rows; ++i, line += s.out_width) {
        const std::int64_t in_row = i * s.stride + copy.row;
        const __mmask32 inside = in_row >= 0 && in_row < s.height ? found : 0;
        const BFloat16* from = planes + c * planar.plane + in_row * planar.pitch + at;
        _mm512_mask_storeu_epi16(line, wanted, _mm512_maskz_loadu_epi16(inside, from));
      }
    }
  }
}

DP_AVX512 void pack_permuted(const Shapes& s, const Planar& planar, const Copy& copy, const Permutation& permutation,
                             const BFloat16* planes, BFloat16* to) {
  const __m512i low = _mm512_load_si512(permutation.from), high = _mm512_load_si512(permutation.from + 32);
  const auto found_low = static_cast<__mmask32>(permutation.found),
             found_high = static_cast<__mmask32>(permutation.found >> 32);
  const __mmask32 wanted_low = first_of(s.pixels()), wanted_high = first_of(s.pixels() - 32);
  planes += copy.phase * kBlock * planar.plane;
  for (std::int64_t c = 0; c < kBlock; ++c, planes += planar.plane, to += s.line) {
    const __m512i a = _mm512_loadu_si512(planes), b = _mm512_loadu_si512(planes + 32);
    _mm512_mask_storeu_epi16(to, wanted_low, _mm512_maskz_permutex2var_epi16(found_low, a, low, b));
    if (wanted_high != 0)
      _mm512_mask_storeu_epi16(to + 32, wanted_high, _mm512_maskz_permutex2var_epi16(found_high, a, high, b));
  }
}

DP_AVX512 void pack_pairs(const Shapes& s, std::int64_t pixel, const BFloat16* dy, std::int64_t step, BFloat16* unit) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  std::int64_t i = 0;
  for (; (pixel + i) % 2 != 0 && i < s.pixels(); ++i)  // the second of a pair
    for (std::int64_t c = 0; c < kBlock; ++c) unit[(pixel + i - 1) * kBlock + 2 * c + 1] = dy[i * step + c];
  for (; i + 2 <= s.pixels(); i += 2) {
    const __m512i both = _mm512_or_si512(_mm512_maskz_loadu_epi16(0xffff, dy + i * step),
                                         _mm512_maskz_loadu_epi16(0xffff0000, dy + (i + 1) * step - kBlock));
    _mm512_storeu_si512(unit + (pixel + i) * kBlock, _mm512_permutexvar_epi16(order, both));
  }
  if (i < s.pixels())
    for (std::int64_t c = 0; c < kBlock; ++c) unit[(pixel + i) * kBlock + 2 * c] = dy[i * step + c];
}

}  // namespace dp::kernels::amx

#define DP_AMX __attribute__((target("amx-tile,amx-bf16")))

namespace dp::kernels {
namespace {

using namespace amx;

// The size of a group of packed images in bytes. A small group fits in the cache. A large one reads and writes dw less
// often.
constexpr std::int64_t kGroupBytes = 3 << 19, kGroupPerDw = 4;
constexpr std::int64_t kPanelBytes = 768 << 10;  // of packed dy that all blocks of x reuse
constexpr std::int64_t kSharedDepth = 256;       // pixels that all taps of a column process before the next pixels
constexpr std::int64_t kRun = 256;               // pixels of the bias gradient that are accumulated in float

DP_AMX void configure_tiles() {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Config config;
  _tile_loadconfig(&config);
}
DP_AMX void release_tiles() { _tile_release(); }

struct Packed {  // a group of packed images
  const BFloat16 *x, *dy;
  std::int64_t units, x_unit, dy_unit;  // elements of a block of a unit; the next unit follows
};
struct Chunk {
  std::int64_t unit, units, pixel, end;  // pixels of each unit
};

// Accumulates a chunk's products into dw; overwrites dw if `first`. Tiles 0 to 3 are the accumulators, 4 and 5 two
// blocks of input channels, 6 and 7 two blocks of output channels. `row`: bytes between input channels.
template <bool kTwoIn, bool kTwoOut>
DP_AMX void multiply(const Packed& at, const Chunk& chunk, std::int64_t x_block, std::int64_t dy_block,
                     std::int64_t row, float* dw, std::int64_t next_in, std::int64_t next_out, bool first) {
  asm volatile("" ::: "memory");  // GCC does not treat _tile_loadd as a read of memory
  if (first) {
    _tile_zero(0);
    if (kTwoOut) _tile_zero(1);
    if (kTwoIn) _tile_zero(2);
    if (kTwoIn && kTwoOut) _tile_zero(3);
  } else {
    _tile_loadd(0, dw, 64);
    if (kTwoOut) _tile_loadd(1, dw + next_out, 64);
    if (kTwoIn) _tile_loadd(2, dw + next_in, 64);
    if (kTwoIn && kTwoOut) _tile_loadd(3, dw + next_in + next_out, 64);
  }
  for (std::int64_t n = chunk.unit; n < chunk.unit + chunk.units; ++n) {
    const BFloat16 *x = at.x + n * at.x_unit + chunk.pixel, *dy = at.dy + n * at.dy_unit + chunk.pixel * kBlock;
    for (std::int64_t k = chunk.pixel; k < chunk.end; k += kDepth, x += kDepth, dy += kDepth * kBlock) {
      _tile_loadd(4, x, row);
      if (kTwoIn) _tile_loadd(5, x + x_block, row);
      _tile_loadd(6, dy, 64);
      if (kTwoOut) _tile_loadd(7, dy + dy_block, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (kTwoOut) _tile_dpbf16ps(1, 4, 7);
      if (kTwoIn) _tile_dpbf16ps(2, 5, 6);
      if (kTwoIn && kTwoOut) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, dw, 64);
  if (kTwoOut) _tile_stored(1, dw + next_out, 64);
  if (kTwoIn) _tile_stored(2, dw + next_in, 64);
  if (kTwoIn && kTwoOut) _tile_stored(3, dw + next_in + next_out, 64);
}

// Each kernel tap's gradient is a matrix product: x, shifted by the tap, with input channels as rows and pixels as
// columns, times dy. A group of images is packed, then multiplied. Each output tile is a block of 16 x 16 channels of
// dw. It accumulates over pixels and images in a fixed order.
// One thread computes each block of the result, so the bits do not depend on the number of threads.
class AmxBackwardWeights : public HostOp {
 public:
  AmxBackwardWeights(const Conv2dBackwardWeights& d, const CpuOpOptions& options)
      : bias_(d.bias),
        threads_(options.threads),
        x_(view_of(d.x)),
        dy_(view_of(d.dy)),
        shapes_(d.window, x_, dy_),
        planar_(shapes_),
        in_(x_.c / kBlock),
        out_(dy_.c / kBlock) {
    tensors_ = {d.x, d.dy, d.dw};
    for (std::int64_t number = 0; number < shapes_.copies; ++number) {
      copies_.emplace_back(shapes_, number);
      if (Permutation::fits(shapes_, planar_)) permutations_.emplace_back(shapes_, planar_, copies_.back());
    }
    const std::int64_t unit_bytes = (in_ * shapes_.block() + out_ * kBlock * shapes_.depth) * 2;
    const std::int64_t most = std::max(kGroupBytes, kGroupPerDw * static_cast<std::int64_t>(d.dw.layout.bytes));
    units_ = std::clamp<std::int64_t>(most / unit_bytes, 1, (x_.n + shapes_.unit - 1) / shapes_.unit);
    const std::int64_t pair_bytes = units_ * 2 * kBlock * shapes_.depth * 2;
    panel_ = std::clamp<std::int64_t>(kPanelBytes / pair_bytes, 1, (out_ + 1) / 2) * 2;
  }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(units_ * (in_ * shapes_.block() + out_ * kBlock * shapes_.depth) +
                                    threads_ * planar_.elements(shapes_)) *
           sizeof(BFloat16);
  }
  std::string implementation() const override { return "own:amx"; }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    const auto *x = static_cast<const BFloat16*>(args.x), *dy = static_cast<const BFloat16*>(args.dy);
    auto* const packed_x = static_cast<BFloat16*>(workspace);
    BFloat16* const packed_dy = packed_x + units_ * in_ * shapes_.block();
    BFloat16* const planes = packed_dy + units_ * out_ * kBlock * shapes_.depth;
    float* const dw = static_cast<float*>(args.dw);
    announce_write(dw, tensors_[2].layout.bytes);
    if (bias_) sum_pixels(dy, static_cast<float*>(args.db));
    for (std::int64_t begin = 0; begin < x_.n; begin += units_ * shapes_.unit) {
      const std::int64_t units = std::min(units_, (x_.n - begin + shapes_.unit - 1) / shapes_.unit);
      parallel_ranges(threads_, units * (in_ + out_), 1, [&](std::int64_t at, std::int64_t end, int thread) {
        BFloat16* const own = planes + thread * planar_.elements(shapes_);
        for (; at < end; ++at)
          if (at < units * in_)
            pack_x(begin + at / in_ * shapes_.unit, at % in_, x, own,
                   packed_x + (at % in_ * units + at / in_) * shapes_.block());
          else
            pack_dy(
                begin + (at - units * in_) / out_ * shapes_.unit, (at - units * in_) % out_, dy,
                packed_dy + ((at - units * in_) % out_ * units + (at - units * in_) / out_) * kBlock * shapes_.depth);
      });
      const Packed packed{packed_x, packed_dy, units, shapes_.block(), kBlock * shapes_.depth};
      parallel_ranges(threads_, panels() * in_pairs(), 1, [&](std::int64_t at, std::int64_t end) {
        configure_tiles();
        for (; at < end; ++at) multiply_panel(at / in_pairs(), at % in_pairs() * 2, packed, dw, begin == 0);
        release_tiles();
      });
    }
  }

 private:
  std::int64_t in_pairs() const { return (in_ + 1) / 2; }
  std::int64_t panels() const { return (out_ + panel_ - 1) / panel_; }
  static const BFloat16* block_of(const ActivationView& view, const BFloat16* data, std::int64_t n,
                                  std::int64_t block) {
    const std::int64_t channel = block * kBlock;
    return data + view.at(n, channel / view.block) + channel % view.block;
  }

  // `n`: the unit's first image.
  void pack_x(std::int64_t n, std::int64_t block, const BFloat16* x, BFloat16* planes, BFloat16* to) const {
    const Shapes& s = shapes_;
    const std::int64_t images = std::min(s.unit, x_.n - n);
    if (images * s.pixels() < s.depth && !s.by_column)
      std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(s.block()) * sizeof(BFloat16));
    for (std::int64_t image = 0; image < images; ++image) {
      transpose(s, planar_, block_of(x_, x, n + image, block), x_.block, planes);
      for (std::int64_t number = 0; number < s.copies; ++number) {
        const Copy& copy = copies_[static_cast<std::size_t>(number)];
        BFloat16* const place = to + number * kBlock * s.line + image * s.pixels();
        if (permutations_.empty())
          pack_rows(s, planar_, copy, planes, place);
        else
          pack_permuted(s, planar_, copy, permutations_[static_cast<std::size_t>(number)], planes, place);
      }
    }
  }

  void pack_dy(std::int64_t n, std::int64_t block, const BFloat16* dy, BFloat16* to) const {
    const Shapes& s = shapes_;
    const std::int64_t images = std::min(s.unit, dy_.n - n);
    const std::int64_t packed = images * s.pixels() / 2 * 2;
    std::memset(static_cast<void*>(to + packed * kBlock), 0,
                static_cast<std::size_t>((s.depth - packed) * kBlock) * sizeof(BFloat16));
    for (std::int64_t image = 0; image < images; ++image)
      pack_pairs(s, image * s.pixels(), block_of(dy_, dy, n + image, block), dy_.block, to);
  }

  // Multiplies two blocks of input channels by the output channels of a panel, for all taps.
  void multiply_panel(std::int64_t panel, std::int64_t in, const Packed& packed, float* dw, bool first) const {
    const std::int64_t out_end = std::min(out_, (panel + 1) * panel_);
    if (!shapes_.by_column) {
      for (std::int64_t out = panel * panel_; out < out_end; out += 2)
        for (std::int64_t tap = 0; tap < shapes_.copies; ++tap)
          multiply_tap(in, out, tap, tap * kBlock * shapes_.line, packed, {0, packed.units, 0, shapes_.depth}, dw,
                       first);
      return;
    }
    for (std::int64_t unit = 0; unit < packed.units; ++unit)
      for (std::int64_t pixel = 0; pixel < shapes_.depth; pixel += kSharedDepth) {
        const Chunk chunk{unit, 1, pixel, std::min(shapes_.depth, pixel + kSharedDepth)};
        for (std::int64_t out = panel * panel_; out < out_end; out += 2)
          for (std::int64_t col = 0; col < shapes_.kernel; ++col)
            for (std::int64_t row = 0; row < shapes_.kernel; ++row)
              multiply_tap(in, out, row * shapes_.kernel + col, col * kBlock * shapes_.line + row * shapes_.out_width,
                           packed, chunk, dw, first && unit == 0 && pixel == 0);
      }
  }

  // `offset`: elements from the start of a block of x to the tap's first pixel.
  void multiply_tap(std::int64_t in, std::int64_t out, std::int64_t tap, std::int64_t offset, const Packed& packed,
                    const Chunk& chunk, float* dw, bool first) const {
    constexpr std::int64_t kElements = kBlock * kBlock;
    const std::int64_t x_block = packed.units * packed.x_unit, dy_block = packed.units * packed.dy_unit;
    const std::int64_t next_in = shapes_.kernel * shapes_.kernel * kElements, next_out = in_ * next_in;
    const bool two_in = in + 1 < in_, two_out = out + 1 < out_;
    const auto run = two_in ? (two_out ? multiply<true, true> : multiply<true, false>)
                            : (two_out ? multiply<false, true> : multiply<false, false>);
    Packed at = packed;
    at.x += in * x_block + offset;
    at.dy += out * dy_block;
    run(at, chunk, x_block, dy_block, shapes_.line * 2, dw + out * next_out + in * next_in + tap * kElements, next_in,
        next_out, first);
  }

  void sum_pixels(const BFloat16* dy, float* db) const {
    parallel_ranges(threads_, out_, 1, [&](std::int64_t at, std::int64_t end) {
      using V = Lanes<std::min<int>(kLanes, kBlock)>;
      for (; at < end; ++at) {
        double sums[kBlock] = {};
        for (std::int64_t n = 0; n < dy_.n; ++n) {
          const BFloat16* from = block_of(dy_, dy, n, at);
          for (std::int64_t pixel = 0, run_end = 0; pixel < dy_.h * dy_.w; pixel = run_end) {
            typename V::Floats run[kBlock / V::count] = {};
            for (run_end = std::min(pixel + kRun, dy_.h * dy_.w); pixel < run_end; ++pixel, from += dy_.block)
              for (int i = 0; i < kBlock / V::count; ++i) run[i] += V::load(from + i * V::count);
            for (int c = 0; c < kBlock; ++c) sums[c] += static_cast<double>(run[c / V::count][c % V::count]);
          }
        }
        for (int c = 0; c < kBlock; ++c) db[at * kBlock + c] = static_cast<float>(sums[c]);
      }
    });
  }

  bool bias_;
  int threads_;
  ActivationView x_, dy_;
  Shapes shapes_;
  Planar planar_;
  std::vector<Copy> copies_;
  std::vector<Permutation> permutations_;  // one per copy; empty for larger images
  std::int64_t in_, out_;                  // blocks of channels
  std::int64_t units_ = 1;                 // of a group of images that are packed together
  std::int64_t panel_ = 2;                 // blocks of output channels that are multiplied together
};

bool fits(const TensorDesc& tensor) {
  const ActivationView view = view_of(tensor);
  return view.c % kBlock == 0 && view.block % kBlock == 0;
}

}  // namespace

std::unique_ptr<HostOp> make_amx_backward_weights(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  if (!has_amx() || d.x.type != DType::bf16 || !is_plain(d.x, d.dw, d.window)) return nullptr;
  if (!fits(d.x) || !fits(d.dy)) return nullptr;
  const DnnlDesc wanted(dims_of(d.dw.shape), dnnl::memory::data_type::f32, dnnl::memory::format_tag::ABcd16b16a);
  if (!(d.dw.layout == make_layout(wanted, DType::f32))) return nullptr;
  return std::make_unique<AmxBackwardWeights>(d, options);
}

}  // namespace dp::kernels

#else

namespace dp::kernels {

std::unique_ptr<HostOp> make_amx_backward_weights(const Conv2dBackwardWeights&, const CpuOpOptions&) { return nullptr; }

}  // namespace dp::kernels

#endif
