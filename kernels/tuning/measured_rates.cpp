#include "kernels/tuning/measured_rates.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dp/error.h"
#include "kernels/device/cuda/check.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/owner.h"
#include "kernels/device/cuda/tensor_layout.h"
#include "kernels/linear/cuda_cublaslt.h"
#include "kernels/tuning/trial.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::size_t kCaches = 8;              // the copy is larger than the L2 cache by this factor
constexpr std::int64_t kRowsPerProcessor = 64;  // of the product; 8448 on an H100

// Bytes read and written per second by a copy of `bytes` on the device.
double copy_rate(std::size_t bytes) {
  const DeviceMemory from = device_memory(bytes), to = device_memory(bytes);
  const StreamHandle stream = make_stream_handle();
  const EventHandle begin = make_timed_event_handle(), end = make_timed_event_handle();
  check(cudaMemsetAsync(from.get(), 1, bytes, stream.get()), "filling memory");
  std::array<float, 5> milliseconds{};
  for (float& one : milliseconds) {
    check(cudaEventRecord(begin.get(), stream.get()), "recording an event");
    check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream.get()), "copying");
    check(cudaEventRecord(end.get(), stream.get()), "recording an event");
    check(cudaEventSynchronize(end.get()), "copying");
    check(cudaEventElapsedTime(&one, begin.get(), end.get()), "measuring a copy");
  }
  std::ranges::nth_element(milliseconds, milliseconds.begin() + 2);
  return 2e3 * static_cast<double>(bytes) / static_cast<double>(milliseconds[2]);
}

// Operations per second of the fastest algorithm of cuBLASLt for a product of n x n matrices. 0: not available.
double product_rate(std::int64_t n, DType type, const CudaOpOptions& options) {
  const Shape shape{n, n};
  const TensorDesc matrix{shape, type, plain(shape, type)};
  const LinearForward desc{matrix, matrix, matrix, false, false};
  std::vector<std::unique_ptr<CudaOp>> made;
  std::vector<CudaOp*> ops;
  for (const Candidate& candidate : cublaslt_candidates(desc, options))
    if (auto op = candidate.make()) ops.push_back(made.emplace_back(std::move(op)).get());
  if (ops.empty()) return 0;
  const std::vector<TrialResult> results = try_ops(trial_arguments(desc), ops);
  const double microseconds = std::ranges::min_element(results, {}, &TrialResult::microseconds)->microseconds;
  const auto edge = static_cast<double>(n);
  return microseconds < kUnfit ? 2 * edge * edge * edge / microseconds * 1e6 : 0;
}

Rates measure(int device, DType type, const CudaOpOptions& options) {
  Rates rates = device_rates(device, type);
  int cache = 0;
  check(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device), "reading the L2 cache size");
  const std::size_t bytes = kCaches * static_cast<std::size_t>(cache);
  const std::int64_t edge = kRowsPerProcessor * options.multiprocessors;
  std::string copy = "bytes by its clocks", product = "arithmetic by its clocks";
  try {
    rates.bytes = copy_rate(bytes);
    copy = "a copy of " + std::to_string(bytes >> 20) + " MiB, bytes read and written";
    if (const double measured = product_rate(edge, type, options); measured > 0) {
      rates.flops = measured;
      product = "a product of " + std::to_string(edge) + "x" + std::to_string(edge) + " matrices by cuBLASLt";
    }
  } catch (const Error&) {  // memory is short
  }
  rates.source = product + "; " + copy;
  return rates;
}

}  // namespace

Rates measured_rates(int device, DType type, const CudaOpOptions& options) {
  static std::mutex mutex;
  static std::map<std::pair<int, DType>, Rates> known;
  const std::scoped_lock lock(mutex);
  const auto found = known.find({device, type});
  if (found != known.end()) return found->second;
  return known[{device, type}] = measure(device, type, options);
}

}  // namespace dp::kernels::cuda
