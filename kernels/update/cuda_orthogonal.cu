// Orthogonalize: the products of the linear layers, and element-wise kernels between them.
#include <algorithm>
#include <array>

#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kPartials = kElementThreads;  // blocks of squares_kernel

__global__ void __launch_bounds__(kElementThreads) squares_kernel(const float* x, double* partials, long long count) {
  double sum = 0;
  for (long long i = first_element<1>(); i < count; i += static_cast<long long>(kPartials) * kElementThreads)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = block_sum<kElementThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// x /= max(norm, kLeastMatrixNorm)
__global__ void __launch_bounds__(kElementThreads) normalize_kernel(float* x, const double* partials, long long count) {
  DP_SHARED(float, norm, [1]);
  const double sum = block_sum<kElementThreads>(partials[threadIdx.x]);
  if (threadIdx.x == 0) {
    const double root = sqrt(sum);
    norm[0] = static_cast<float>(root < kLeastMatrixNorm ? kLeastMatrixNorm : root);
  }
  __syncthreads();
  const long long at = first_element<1>();
  if (at < count) x[at] /= norm[0];
}

// y = a x + b y
template <int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    combine_kernel(const float* x, float* y, float a, float b, long long count) {
  map_elements<kWidth>(x, y, y, count, [=](float from, float to) { return a * from + b * to; });
}

TensorDesc matrix(std::int64_t rows, std::int64_t columns) {
  const Shape shape{rows, columns};
  return {shape, DType::f32, plain(shape, DType::f32)};
}

class OrthogonalizeOp final : public CudaOp {
 public:
  OrthogonalizeOp(const Orthogonalize& d, const CudaOpOptions& options) : desc_(d), wide_(d.rows <= d.columns) {
    const TensorDesc x = matrix(d.rows, d.columns), square = matrix(d.side(), d.side());
    gram_ = wide_ ? make(LinearForward{.x = x, .w = x, .y = square, .bias = false}, options)
                  : make(LinearBackwardWeights{.x = x, .dy = x, .dw = square, .bias = false}, options);
    square_ = make(LinearBackwardData{.dy = square, .w = square, .dx = square}, options);
    product_ = make(LinearBackwardData{.dy = wide_ ? square : x, .w = wide_ ? x : square, .dx = x}, options);
  }

  std::size_t workspace_bytes() const override {
    const std::size_t own =
        std::max({gram_->workspace_bytes(), square_->workspace_bytes(), product_->workspace_bytes()});
    return kPartials * sizeof(double) +
           static_cast<std::size_t>(2 * padded(squares()) + padded(count())) * sizeof(float) + own;
  }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void* workspace) override {
    float* const x = out(args_of<Orthogonalize>(pointers).x);
    auto* const partials = static_cast<double*>(workspace);
    float* const gram = reinterpret_cast<float*>(partials + kPartials);
    float *const polynomial = gram + padded(squares()), *const next = polynomial + padded(squares());
    void* const rest = next + padded(count());
    launch({"squares", dim3(kPartials), dim3(kElementThreads), stream}, squares_kernel, x, partials, count());
    launch(over_elements("normalize", count(), /*packs=*/false, stream), normalize_kernel, x, partials, count());
    const auto [a, b, c] = kNewtonSchulz;
    for (int step = 0; step < kNewtonSchulzSteps; ++step) {
      wide_ ? run<LinearForward>(*gram_, stream, {.x = x, .w = x, .b = nullptr, .y = gram}, rest)
            : run<LinearBackwardWeights>(*gram_, stream, {.x = x, .dy = x, .dw = gram, .db = nullptr}, rest);
      run<LinearBackwardData>(*square_, stream, {.dy = gram, .w = gram, .dx = polynomial}, rest);
      combine(gram, polynomial, b, c, squares(), stream);
      run<LinearBackwardData>(*product_, stream,
                              {.dy = wide_ ? polynomial : x, .w = wide_ ? x : polynomial, .dx = next}, rest);
      combine(next, x, 1, a, count(), stream);
    }
  }

 private:
  long long count() const { return desc_.rows * desc_.columns; }
  long long squares() const { return desc_.side() * desc_.side(); }
  static long long padded(long long count) { return (count + 63) / 64 * 64; }  // each matrix begins at 256 bytes

  template <typename D>
  static void run(CudaOp& op, cudaStream_t stream, const Pointers<D>& args, void* workspace) {
    op.run_on(stream, in_order<D, void*>(args), workspace);
  }
  static void combine(const float* x, float* y, double a, double b, long long count, cudaStream_t stream) {
    const bool packs = take_packs(x, y);
    launch(over_elements("combine", count, packs, stream), packs ? combine_kernel<4> : combine_kernel<1>, x, y,
           static_cast<float>(a), static_cast<float>(b), count);
  }

  Orthogonalize desc_;
  bool wide_;
  std::unique_ptr<CudaOp> gram_, square_, product_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const Orthogonalize& desc, const CudaOpOptions& options) {
  return std::make_unique<OrthogonalizeOp>(desc, options);
}

}  // namespace dp::kernels::cuda
