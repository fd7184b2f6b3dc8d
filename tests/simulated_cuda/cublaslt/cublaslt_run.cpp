// Executes a matrix product of the simulated cuBLASLt.
#include <chrono>
#include <cmath>
#include <cstring>

#include "simulated_cuda/cublaslt/cublaslt_state.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

void multiply(const CublasLtLaunch& launch) {
  const CublasLtMatmulDesc& desc = launch.desc;
  const auto [m, n, k, same] = shape_of(desc, launch.a, launch.b);
  const bool tf32 = desc.compute == CublasCompute::tf32;
  const auto element = [&](const CublasLtMatrix& matrix, const void* data, std::int64_t row, std::int64_t col) {
    const float value = load(element_of(matrix.type), data, matrix.place(row, col));
    return static_cast<double>(tf32 ? rounded_to_tf32(value) : value);
  };
  const auto of_a = [&](std::int64_t row, std::int64_t at) {
    return desc.transpose_a == CublasOperation::transpose ? element(launch.a, launch.a_data, at, row)
                                                          : element(launch.a, launch.a_data, row, at);
  };
  const auto of_b = [&](std::int64_t at, std::int64_t col) {
    return desc.transpose_b == CublasOperation::transpose ? element(launch.b, launch.b_data, col, at)
                                                          : element(launch.b, launch.b_data, at, col);
  };
  const ElementType bias_type = element_of(desc.bias_type < 0 ? launch.d.type : desc.bias_type);
  const bool relu = desc.epilogue == CublasLtEpilogue::relu || desc.epilogue == CublasLtEpilogue::relu_bias;
  for (std::int64_t col = 0; col < n; ++col) {
    double column = 0;
    for (std::int64_t at = 0; at < k; ++at) column += of_b(at, col);
    if (desc.epilogue == CublasLtEpilogue::bias_gradient_b)
      store(bias_type, desc.bias, static_cast<std::size_t>(col), static_cast<float>(column));
    for (std::int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (std::int64_t at = 0; at < k; ++at) sum += of_a(row, at) * of_b(at, col);
      auto value = static_cast<float>(sum);
      if (launch.algorithm == CublasLtAlgorithm::wrong) value *= 1.02f;
      if (reads_bias(desc.epilogue)) value += load(bias_type, desc.bias, static_cast<std::size_t>(row));
      store(element_of(launch.d.type), launch.d_data, launch.d.place(row, col),
            relu && (value < 0 || (std::isnan(value) && launch.algorithm == CublasLtAlgorithm::loses_nan)) ? 0 : value);
    }
  }
}

std::vector<TouchedMemory> touched_by(const CublasLtLaunch& launch) {
  const auto bytes = [](const CublasLtMatrix& matrix) { return matrix.elements() * bytes_of(matrix.type); };
  std::vector<TouchedMemory> touched{{launch.a_data, bytes(launch.a), false},
                                     {launch.b_data, bytes(launch.b), false},
                                     {launch.d_data, bytes(launch.d), true}};
  if (const std::size_t workspace = workspace_of(launch.algorithm); workspace > 0)
    touched.push_back({launch.workspace, workspace, true});
  const std::int32_t type = launch.desc.bias_type < 0 ? launch.d.type : launch.desc.bias_type;
  if (reads_bias(launch.desc.epilogue))
    touched.push_back({launch.desc.bias, static_cast<std::size_t>(launch.d.rows) * bytes_of(type), false});
  if (launch.desc.epilogue == CublasLtEpilogue::bias_gradient_b)
    touched.push_back({launch.desc.bias, static_cast<std::size_t>(launch.d.cols) * bytes_of(type), true});
  return touched;
}

}  // namespace

void run_cublaslt(const ForeignWork& work, int device, std::uint32_t operation) {
  const CublasLtLaunch& launch = *static_cast<const CublasLtLaunch*>(work.data);
  {
    const QuietAccesses quiet;
    const OpenMemory open(1u << device);
    if (const std::size_t bytes = workspace_of(launch.algorithm); bytes > 0) std::memset(launch.workspace, 0xEE, bytes);
    multiply(launch);
  }
  announce(work, device, operation, touched_by(launch));
}

}  // namespace dp::simt
