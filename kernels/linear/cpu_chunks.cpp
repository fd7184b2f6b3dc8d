#include "kernels/linear/cpu_chunks.h"

#include <algorithm>
#include <atomic>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

// Inputs per matrix product. oneDNN's product is half as fast on a transposed matrix of more than about 1,200 rows,
// because it then copies more of the matrix than fits in the cache beside the result (docs/decisions/0015).
constexpr std::int64_t kChunk = 1024;

// Whether w, viewed as (outputs, inputs...), stores the inputs in dx's order, and all outputs of an input contiguously.
bool inputs_of_same_order(const DnnlDesc& w, const DnnlDesc& dx) {
  const dnnl_compat::Blocking a = dnnl_compat::blocking_of(w), b = dnnl_compat::blocking_of(dx);
  if (!a.known || !b.known || a.padded != a.dims || b.padded != b.dims) return false;
  const std::int64_t outputs = a.dims[0];
  auto sizes = b.inner_sizes, axes = b.inner_axes;
  if (a.inner_sizes.size() > sizes.size()) {
    sizes.push_back(outputs);
    axes.push_back(0);
  } else if (outputs > 1 && a.strides[0] != 1) {
    return false;
  }
  if (a.inner_sizes != sizes || a.inner_axes != axes) return false;
  std::int64_t inputs = 1;
  for (std::size_t axis = 1; axis < a.dims.size(); ++axis) {
    inputs *= b.dims[axis];
    if (a.dims[axis] > 1 && a.strides[axis] != b.strides[axis] * outputs) return false;
  }
  return b.dims[0] == 1 || b.strides[0] == inputs;
}

class ChunkedBackwardData : public HostOp {
 public:
  ChunkedBackwardData(const LinearBackwardData& d, const CpuOpOptions& options)
      : threads_(options.threads), rows_(d.dx.shape[0]), outputs_(d.w.shape[0]), inputs_(d.dx.shape.numel() / rows_) {
    tensors_ = {resolved_plain(d.dy), d.w, d.dx};
    const std::int64_t parts = std::max<std::int64_t>((inputs_ + kChunk - 1) / kChunk, 1);
    const std::int64_t whole_rounds = (parts + threads_ - 1) / threads_ * threads_;  // equal work for every thread
    chunk_ = (inputs_ + whole_rounds - 1) / whole_rounds;
  }
  std::string implementation() const override { return "dnnl_sgemm:chunks"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<LinearBackwardData>(pointers);
    const auto* dy = static_cast<const float*>(args.dy);
    const auto* w = static_cast<const float*>(args.w);
    auto* dx = static_cast<float*>(args.dx);
    announce_read(dy, static_cast<std::size_t>(rows_ * outputs_) * sizeof(float));
    announce_read(w, static_cast<std::size_t>(inputs_ * outputs_) * sizeof(float));
    announce_write(dx, static_cast<std::size_t>(rows_ * inputs_) * sizeof(float));
    omp_set_num_threads(1);  // per product, also if parallel_ranges uses no team
    std::atomic<bool> failed{false};
    parallel_ranges(threads_, inputs_, chunk_, [&, this](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += chunk_) {
        const std::int64_t columns = std::min(chunk_, end - begin);
        if (dnnl_sgemm('N', 'T', rows_, columns, outputs_, 1.f, dy, outputs_, w + begin * outputs_, outputs_, 0.f,
                       dx + begin, inputs_) != dnnl_success)
          failed.store(true, std::memory_order_relaxed);
      }
    });
    if (failed.load()) throw Error(ErrorCode::device, "oneDNN failed to multiply matrices");
  }

 private:
  int threads_;
  std::int64_t rows_, outputs_, inputs_, chunk_ = 0;
};

}  // namespace

std::unique_ptr<HostOp> make_chunked_backward_data(const LinearBackwardData& d, const CpuOpOptions& options) {
  if (d.w.layout.any() || d.dx.layout.any()) return nullptr;
  dnnl::memory::dims dims = dims_of(d.dx.shape);
  dims[0] = d.w.shape[0];
  const TensorDesc dy = resolved_plain(d.dy);
  if (dy.layout.name != plain_cpu_layout(dy.shape, dy.type).name) return nullptr;
  if (!inputs_of_same_order(requested(d.w, dims), requested(d.dx))) return nullptr;
  return std::make_unique<ChunkedBackwardData>(d, options);
}

}  // namespace dp::kernels
