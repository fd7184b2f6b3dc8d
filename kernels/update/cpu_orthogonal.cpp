// Orthogonalize. Each thread multiplies blocks of rows of a result by itself, so that the bits do not depend on the
// number of threads.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/device/cpu/dnnl_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

constexpr std::int64_t kBlockRows = 64;

class OrthogonalizeOp : public HostOp {
 public:
  OrthogonalizeOp(const Orthogonalize& d, const CpuOpOptions& options) : desc_(d), threads_(options.threads) {}
  std::string implementation() const override { return "dnnl_sgemm:rows"; }
  std::size_t workspace_bytes() const override {
    return static_cast<std::size_t>(2 * desc_.side() * desc_.side() + count()) * sizeof(float);
  }

  void execute(std::span<void* const> pointers, void* workspace) override {
    float* const x = static_cast<float*>(args_of<Orthogonalize>(pointers).x);
    const std::int64_t rows = desc_.rows, columns = desc_.columns, side = desc_.side();
    float *const gram = static_cast<float*>(workspace), *const polynomial = gram + side * side,
                 *const next = polynomial + side * side;
    const auto [a, b, c] = kNewtonSchulz;
    normalize(x);
    for (int step = 0; step < kNewtonSchulzSteps; ++step) {
      rows <= columns ? multiply('N', 'T', side, side, columns, 1, x, columns, x, columns, 0, gram)
                      : multiply('T', 'N', side, side, rows, 1, x, columns, x, columns, 0, gram);
      std::copy_n(gram, side * side, polynomial);
      multiply('N', 'N', side, side, side, c, gram, side, gram, side, b, polynomial);
      std::copy_n(x, count(), next);
      rows <= columns ? multiply('N', 'N', rows, columns, side, 1, polynomial, side, x, columns, a, next)
                      : multiply('N', 'N', rows, columns, side, 1, x, columns, polynomial, side, a, next);
      std::copy_n(next, count(), x);
    }
  }

 private:
  std::int64_t count() const { return desc_.rows * desc_.columns; }

  void normalize(float* x) const {
    double squares = 0;
    for (std::int64_t row = 0; row < desc_.rows; ++row) {
      double sums[8] = {};
      const float* const at = x + row * desc_.columns;
      for (std::int64_t i = 0; i < desc_.columns; ++i)
        sums[i % 8] += static_cast<double>(at[i]) * static_cast<double>(at[i]);
      for (const double sum : sums) squares += sum;
    }
    const auto norm = static_cast<float>(std::max(std::sqrt(squares), kLeastMatrixNorm));
    for (std::int64_t i = 0; i < count(); ++i) x[i] /= norm;
  }

  // result (m, n) = alpha op(p) op(q) + beta result, row-major; op(p) has `depth` columns.
  void multiply(char op_p, char op_q, std::int64_t m, std::int64_t n, std::int64_t depth, double alpha, const float* p,
                std::int64_t p_stride, const float* q, std::int64_t q_stride, double beta, float* result) const {
    omp_set_num_threads(1);  // per product, also if parallel_ranges uses no team
    std::atomic<bool> failed{false};
    parallel_ranges(threads_, m, kBlockRows, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += kBlockRows)
        if (dnnl_sgemm(op_p, op_q, std::min(kBlockRows, end - begin), n, depth, static_cast<float>(alpha),
                       p + begin * (op_p == 'N' ? p_stride : 1), p_stride, q, q_stride, static_cast<float>(beta),
                       result + begin * n, n) != dnnl_success)
          failed.store(true, std::memory_order_relaxed);
    });
    if (failed.load()) throw Error(ErrorCode::device, "oneDNN failed to multiply matrices");
  }

  Orthogonalize desc_;
  int threads_;
};

}  // namespace

std::unique_ptr<HostOp> make(const Orthogonalize& d, const CpuOpOptions& options) {
  return std::make_unique<OrthogonalizeOp>(d, options);
}

}  // namespace dp::kernels
