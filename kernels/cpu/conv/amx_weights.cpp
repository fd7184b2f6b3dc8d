// Each kernel tap's gradient is a matrix product: x, shifted by the tap, with input channels as rows and pixels as
// columns, times dy. A group of images is packed (amx_pack.h), then multiplied. Each output tile is a block of 16 x 16
// channels of dw. It accumulates over pixels and images in a fixed order.
#include "kernels/cpu/conv/amx_weights.h"

#include "kernels/cpu/bfloat16/bfloat16_support.h"
#include "kernels/cpu/conv/amx_pack.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/dnnl_compat.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_args.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/announce.h"

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
  if (!has_amx() || d.x.type != DType::bf16 || !fits(d.x) || !fits(d.dy)) return nullptr;
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
