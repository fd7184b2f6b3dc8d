// Resampling of images on CPUs. Each thread computes whole planes (one sample, one block of channels).
#include <memory>
#include <string>
#include <vector>

#include "dp/error.h"
#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// For each row, or column, of the destination: those of the source that it reads, in order, with their shares.
class Reads {
 public:
  struct Read {
    std::int64_t cell;
    float share;
  };

  Reads(const ResampleSide& side, bool backward) {
    std::vector<std::vector<Read>> all(static_cast<std::size_t>(backward ? side.input : side.output));
    for (std::int32_t at = 0; at < side.output; ++at) {
      const std::int32_t first = side.reads(at).first;
      for (const std::int32_t cell : {first, first + 1}) {
        const auto share = static_cast<float>(side.share(at, cell));
        if (share != 0) all[static_cast<std::size_t>(backward ? cell : at)].push_back({backward ? at : cell, share});
      }
    }
    for (const std::vector<Read>& one : all) {
      reads_.insert(reads_.end(), one.begin(), one.end());
      ends_.push_back(reads_.size());
    }
  }
  std::span<const Read> of(std::int64_t destination) const {
    const auto at = static_cast<std::size_t>(destination);
    const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
    return std::span(reads_).subspan(begin, ends_[at] - begin);
  }

 private:
  std::vector<Read> reads_;
  std::vector<std::size_t> ends_;
};

class ResampleOp final : public HostOp {
 public:
  // Reads `from` and writes `to`. rows, cols: of the forward pass.
  ResampleOp(const TensorDesc& from, const TensorDesc& to, const ResampleSide& rows, const ResampleSide& cols,
             bool backward, int threads)
      : rows_(rows, backward), cols_(cols, backward), from_(view_beside(from, to)), to_(view_beside(to, from)) {
    if (from_.block != to_.block || from_.blocks != to_.blocks)
      throw Error(ErrorCode::usage, "a resampling requires the same kind of layout for input and output, not " +
                                        from.layout.name + " and " + to.layout.name);
    tensors_ = {from, to};
    threads_ = threads_for(threads, static_cast<std::int64_t>(std::max(from.layout.bytes, to.layout.bytes)));
  }
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> args, void*) override {
    with_element_type(tensors_[0].type, [&]<typename T>() {
      parallel_ranges(threads_, to_.n * to_.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t n = i / to_.blocks, block = i % to_.blocks;
          run_plane(static_cast<const T*>(args[0]) + from_.at(n, block), static_cast<T*>(args[1]) + to_.at(n, block));
        }
      });
    });
  }

 private:
  template <typename T>
  void run_plane(const T* from, T* to) const {
    const std::int64_t width = from_.w, block = from_.block;
    for (std::int64_t i = 0; i < to_.h; ++i)
      for (std::int64_t j = 0; j < to_.w; ++j, to += block)
        for_lanes_of(0, block, [&](auto lanes, std::int64_t c) {
          using V = decltype(lanes);
          typename V::Floats sum{};
          for (const Reads::Read& row : rows_.of(i))
            for (const Reads::Read& col : cols_.of(j))
              sum += V::load(from + (row.cell * width + col.cell) * block + c) * (row.share * col.share);
          V::store(to + c, sum);
        });
  }

  Reads rows_, cols_;
  ActivationView from_, to_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<HostOp> make(const ResampleForward& d, const CpuOpOptions& options) {
  const TensorDesc x = resolved_plain(d.x);
  return std::make_unique<ResampleOp>(x, in_layout_of(x, d.y), resample_side(d.how, d.x.shape, d.y.shape, 2, &HW::h),
                                      resample_side(d.how, d.x.shape, d.y.shape, 3, &HW::w), false, options.threads);
}
std::unique_ptr<HostOp> make(const ResampleBackward& d, const CpuOpOptions& options) {
  const TensorDesc dx = d.dx.layout.any() && !d.dy.layout.any() ? in_layout_of(d.dy, d.dx) : resolved_plain(d.dx);
  return std::make_unique<ResampleOp>(in_layout_of(dx, d.dy), dx,
                                      resample_side(d.how, d.dx.shape, d.dy.shape, 2, &HW::h),
                                      resample_side(d.how, d.dx.shape, d.dy.shape, 3, &HW::w), true, options.threads);
}

}  // namespace dp::kernels
