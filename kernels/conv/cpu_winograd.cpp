// Convolutions by Winograd's algorithm, and the rule that selects it.
#include "kernels/conv/cpu_own.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "kernels/conv/cpu_winograd_planes.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

using namespace winograd;

// Results do not depend on the number of threads: the shapes alone determine the runs of tiles and the slices of
// matrices.
class WinogradOp : public HostOp {
 public:
  std::size_t workspace_bytes() const override { return static_cast<std::size_t>(workspace_floats_) * sizeof(float); }
  std::string implementation() const override { return "own:winograd_4x3"; }

 protected:
  WinogradOp(const WeightsView& weights, int threads) : weights_(weights), threads_(threads) {}

  // Reserves `floats` floats of the workspace, aligned to a cache line. Returns their offset.
  std::int64_t reserve(std::int64_t floats) {
    const std::int64_t at = workspace_floats_;
    workspace_floats_ += (floats + 15) / 16 * 16;
    return at;
  }
  // c = a b + beta c, row-major.
  void multiply(char turn_a, char turn_b, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    if (dnnl_sgemm(turn_a, turn_b, m, n, k, 1.f, a, lda, b, ldb, beta, c, ldc) != dnnl_success)
      failed_.store(true, std::memory_order_relaxed);
  }
  void check() {
    if (failed_.load()) throw Error(ErrorCode::device, "oneDNN failed to multiply matrices");
  }

  WeightsView weights_;
  int threads_;

 private:
  std::int64_t workspace_floats_ = 0;
  std::atomic<bool> failed_{false};
};

// Forward and data gradient. The data gradient is a forward convolution of dy, with the weights rotated by 180 degrees
// and input and output channels swapped.
class ImagesOp : public WinogradOp {
 public:
  struct Call {
    TensorDesc from, to;
    WeightsView weights;
    std::int64_t padding;
    bool data, bias, relu;
  };
  ImagesOp(const Call& call, std::vector<TensorDesc> tensors, const CpuOpOptions& options)
      : WinogradOp(call.weights, options.threads), call_(call), from_(view_of(call.from)), to_(view_of(call.to)) {
    tensors_ = std::move(tensors);
    tiles_ = {to_.n, to_.h, to_.w};
    // A thread processes as many tiles at a time as fit in its L2 cache, but at least kFewest: with fewer the matrix
    // product is slow.
    constexpr std::int64_t kCacheFloats = 3 << 17, kFewest = 32, kMost = 128;
    const std::int64_t fits = kCacheFloats / (kPositions * (channels_of(from_) + channels_of(to_)));
    run_ = std::clamp(fits, kFewest, kMost);
    transformed_at_ = reserve(transformed(nullptr).floats());
    bias_at_ = reserve(channels_of(to_));
    runs_at_ = reserve(threads_ * (taken(nullptr).floats() + products(nullptr).floats()));
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    if (call_.data) {
      const auto args = args_of<Conv2dBackwardData>(pointers);
      convolve(args.dy, args.w, nullptr, args.dx, workspace);
    } else {
      const auto args = args_of<Conv2dForward>(pointers);
      convolve(args.x, args.w, call_.bias ? args.b : nullptr, args.y, workspace);
    }
  }

 private:
  void convolve(const void* images, const void* kernel, const void* bias_of_y, void* results, void* workspace) {
    const float *from = static_cast<const float*>(images), *w = static_cast<const float*>(kernel);
    float *to = static_cast<float*>(results), *memory = static_cast<float*>(workspace);
    omp_set_num_threads(1);  // per product, also if parallel_ranges uses no team
    const Matrices u = transformed(memory + transformed_at_);
    parallel_ranges(threads_, weights_.inputs, 1, [&](std::int64_t begin, std::int64_t end) {
      take_weights(weights_, w, call_.data, begin, end, u);
    });
    const float* bias = bias_of_y ? padded_bias(static_cast<const float*>(bias_of_y), memory + bias_at_) : nullptr;
    parallel_ranges(threads_, tiles_.count(), run_, [&](std::int64_t begin, std::int64_t end, int thread) {
      float* own = memory + runs_at_ + thread * (taken(nullptr).floats() + products(nullptr).floats());
      const Matrices v = taken(own), m = products(own + v.floats());
      for (; begin < end; begin += run_) {
        const TileRange range{begin, 0, std::min(run_, end - begin)};
        take_inputs(from_, from, tiles_, range, call_.padding, v);
        for (int p = 0; p < kPositions; ++p)
          multiply('N', call_.data ? 'T' : 'N', range.end, m.columns, v.columns, v.at(p, 0), v.columns, u.at(p, 0),
                   u.columns, 0.f, m.at(p, 0), m.columns);
        give_results(m, tiles_, range, bias, call_.relu, to_, to);
      }
    });
    check();
  }
  Matrices transformed(float* at) const { return {at, weights_.inputs, weights_.outputs}; }
  Matrices taken(float* at) const { return {at, run_, channels_of(from_)}; }
  Matrices products(float* at) const { return {at, run_, channels_of(to_)}; }
  const float* padded_bias(const float* bias, float* padded) const {
    std::fill(std::copy_n(bias, to_.c, padded), padded + channels_of(to_), 0.f);
    return padded;
  }

  Call call_;
  ActivationView from_, to_;
  Tiles tiles_;
  std::int64_t run_ = 0, transformed_at_ = 0, bias_at_ = 0, runs_at_ = 0;
};

class WeightsOp : public WinogradOp {
 public:
  WeightsOp(const Conv2dBackwardWeights& d, const WeightsView& weights, const CpuOpOptions& options)
      : WinogradOp(weights, options.threads), desc_(d), x_(view_of(d.x)), dy_(view_of(d.dy)) {
    tensors_ = {d.x, d.dy, d.dw};
    tiles_ = {dy_.n, dy_.h, dy_.w};
    // The tiles that are transformed at a time fit in the last-level cache.
    constexpr std::int64_t kCacheFloats = 5 << 19, kFewest = 32;
    const std::int64_t count = std::max<std::int64_t>(tiles_.count(), 1);
    const std::int64_t most = std::max(kFewest, kCacheFloats / (kPositions * (channels_of(x_) + channels_of(dy_))));
    const std::int64_t stages = (count + most - 1) / most;
    stage_ = (count + stages - 1) / stages;
    inputs_at_ = reserve(inputs(nullptr).floats());
    gradients_at_ = reserve(gradients(nullptr).floats());
    products_at_ = reserve(products(nullptr).floats());
    bias_at_ = reserve(2 * channels_of(dy_));  // doubles
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    const auto args = args_of<Conv2dBackwardWeights>(pointers);
    const float *x = static_cast<const float*>(args.x), *dy = static_cast<const float*>(args.dy);
    float *dw = static_cast<float*>(args.dw), *db = static_cast<float*>(args.db);
    float* memory = static_cast<float*>(workspace);
    const Matrices v = inputs(memory + inputs_at_), g = gradients(memory + gradients_at_);
    const Matrices u = products(memory + products_at_);
    double* sums = reinterpret_cast<double*>(memory + bias_at_);
    std::fill_n(sums, channels_of(dy_), 0.0);
    omp_set_num_threads(1);  // per product, also if parallel_ranges uses no team
    for (std::int64_t first = 0; first < tiles_.count(); first += stage_) {
      const std::int64_t count = std::min(stage_, tiles_.count() - first);
      parallel_ranges(threads_, count, 1, [&](std::int64_t begin, std::int64_t end) {
        take_inputs(x_, x, tiles_, {first, begin, end}, desc_.window.padding.h, v);
        take_gradients(dy_, dy, tiles_, {first, begin, end}, g);
      });
      constexpr std::int64_t kSlice = 64;  // input channels per product
      const std::int64_t slices = (v.columns + kSlice - 1) / kSlice;
      parallel_ranges(threads_, kPositions * slices, 1, [&](std::int64_t begin, std::int64_t end) {
        for (; begin < end; ++begin) {
          const int p = static_cast<int>(begin / slices);
          const std::int64_t i = begin % slices * kSlice, rows = std::min(kSlice, v.columns - i);
          multiply('T', 'N', rows, g.columns, count, v.at(p, 0) + i, v.columns, g.at(p, 0), g.columns,
                   first == 0 ? 0.f : 1.f, u.at(p, i), u.columns);
        }
      });
      if (desc_.bias) add_tile_sums(g, count, sums);
    }
    parallel_ranges(threads_, weights_.inputs, 1,
                    [&](std::int64_t begin, std::int64_t end) { give_weight_gradients(weights_, u, begin, end, dw); });
    if (desc_.bias)
      for (std::int64_t c = 0; c < dy_.c; ++c) db[c] = static_cast<float>(sums[c]);
    check();
  }

 private:
  Matrices inputs(float* at) const { return {at, stage_, channels_of(x_)}; }
  Matrices gradients(float* at) const { return {at, stage_, channels_of(dy_)}; }
  Matrices products(float* at) const { return {at, weights_.inputs, weights_.outputs}; }
  // The second row of A is all ones, hence position (1, 1) of a transformed gradient tile is the sum of the tile's
  // cells.
  static void add_tile_sums(const Matrices& gradients, std::int64_t count, double* sums) {
    for (std::int64_t t = 0; t < count; ++t) {
      const float* tile = gradients.at(kIn + 1, t);
#pragma omp simd
      for (std::int64_t c = 0; c < gradients.columns; ++c) sums[c] += static_cast<double>(tile[c]);
    }
  }

  Conv2dBackwardWeights desc_;
  ActivationView x_, dy_;
  Tiles tiles_;
  std::int64_t stage_ = 1, inputs_at_ = 0, gradients_at_ = 0, products_at_ = 0, bias_at_ = 0;
};

// The view of the weights; empty unless all layouts and the window are supported.
std::optional<WeightsView> fitting(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y,
                                   const Window& window) {
  WeightsView weights;
  if (!(is_plain(x, w, window) && window.kernel == 3 && window.stride == 1) || window.padding.h > 2)
    return std::nullopt;
  if (!view_weights(desc_of(w.layout), weights)) return std::nullopt;
  const ActivationView from = view_of(x), to = view_of(y);
  if (!fits_lanes(from.block) || !fits_lanes(to.block)) return std::nullopt;
  if (channels_of(from) != weights.inputs || channels_of(to) != weights.outputs) return std::nullopt;
  return weights;
}

}  // namespace

std::unique_ptr<HostOp> make_winograd(const Conv2dForward& d, const CpuOpOptions& options) {
  const auto weights = fitting(d.x, d.w, d.y, d.window);
  if (!weights) return nullptr;
  return std::make_unique<ImagesOp>(ImagesOp::Call{d.x, d.y, *weights, d.window.padding.h, false, d.bias, d.relu},
                                    std::vector<TensorDesc>{d.x, d.w, d.y}, options);
}

std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardData& d, const CpuOpOptions& options) {
  const auto weights = fitting(d.dx, d.w, d.dy, d.window);
  if (!weights) return nullptr;
  return std::make_unique<ImagesOp>(ImagesOp::Call{d.dy, d.dx, *weights, 2 - d.window.padding.h, true, false, false},
                                    std::vector<TensorDesc>{d.dy, d.w, d.dx}, options);
}

std::unique_ptr<HostOp> make_winograd(const Conv2dBackwardWeights& d, const CpuOpOptions& options) {
  const auto weights = fitting(d.x, d.dw, d.dy, d.window);
  if (!weights) return nullptr;
  return std::make_unique<WeightsOp>(d, *weights, options);
}

// Winograd with tiles of 4 x 4 results needs a quarter of the multiplications of a direct 3 x 3 convolution. It adds
// transforms of inputs and results, of whole tiles even at image edges, and once per call of the weights. For 32 to 512
// channels, images of 4 to 56 pixels and batches of 1 to 64,
//   direct time / Winograd time = 2.3 * (fraction of tile cells in the image) * tiles / (tiles + weight_tiles)
// is about what was measured. weight_tiles suits Zen 4 and Ice Lake; a Xeon with AMX needs more time for weights that
// exceed its cache (docs/decisions/0048).
bool winograd_pays(ConvPass pass, const Shape& weights, const Shape& result, const Window& window, bool amx) {
  if (!(window.is_square() && window.kernel == 3 && window.stride == 1) || window.padding.h > 1) return false;
  if (weights[0] < 32 || weights[1] < 32) return false;
  constexpr double kFewerProducts = 2.3, kWorthIt = 1.1;
  const double weight_tiles = (pass == ConvPass::weights ? 12 : 28) + (amx ? 8 : 0);
  const std::int64_t tiles = result[0] * ((result[2] + 3) / 4) * ((result[3] + 3) / 4);
  if (tiles == 0) return false;
  const double used = static_cast<double>(result[0] * result[2] * result[3]) / static_cast<double>(16 * tiles);
  const double count = static_cast<double>(tiles);
  return kFewerProducts * used * count / (count + weight_tiles) >= kWorthIt;
}

bool own_winograd_pays(ConvPass pass, const Shape& weights, bool amx) {
  const std::int64_t pairs = weights[0] * weights[1];
  const bool large = pairs >= 256 * 256;  // transformed, 36 floats a pair: far more than the second-level cache
  if (amx) return pass == ConvPass::weights && large;
  return pass != ConvPass::weights && pairs >= 128 * 128 && !large;
}

}  // namespace dp::kernels
