#include "simulated_cuda/runtime/errors.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

struct Reports {
  std::mutex mutex;
  std::vector<std::string> untaken;
  std::set<std::string> known;
};
Reports& reports() {
  static auto& all = *new Reports;
  return all;
}

void fail_at_exit() {
  if (reports().untaken.empty()) return;
  std::fflush(nullptr);
  constexpr int kUntakenReports = 97;
  _exit(kUntakenReports);
}

void print(const std::string& text) { std::fprintf(stderr, "simulated CUDA: %s\n", text.c_str()); }

}  // namespace

cudaError_t unreported(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t failed(cudaError_t error, const char* call) {
  const bool designed = error == cudaErrorNotReady || error == cudaErrorNoDevice || error == cudaErrorMemoryAllocation;
  if (error != cudaSuccess && !designed) report(std::string(call) + " returned " + cudaGetErrorName(error));
  return unreported(error);
}

cudaError_t misused(cudaError_t error, const std::string& call, const std::string& what) {
  report(call + " returned " + cudaGetErrorName(error) + ": " + what);
  return unreported(error);
}

cudaError_t injected_error(const char* call) {
  if (!failing_cuda_call.now()) return cudaSuccess;
  failed_call = call;
  return unreported(cudaErrorUnknown);
}

cudaError_t sticky_error(int index, const char* call) {
  const cudaError_t injected = injected_error(call), sticky = device(index).sticky;
  return sticky != cudaSuccess ? unreported(sticky) : injected;
}

void report(const std::string& text) {
  static const int registered = std::atexit(fail_at_exit);
  (void)registered;
  const QuietLock lock(reports().mutex);
  if (!reports().known.insert(text).second) return;
  reports().untaken.push_back(text);
  print(text);
}

void forget_reports() {
  const QuietLock lock(reports().mutex);
  reports().untaken.clear();
  reports().known.clear();
}

std::vector<std::string> take_reports() {
  const QuietLock lock(reports().mutex);
  std::vector<std::string> taken;
  taken.swap(reports().untaken);
  reports().known.clear();
  return taken;
}

}  // namespace dp::simt

using dp::simt::last_error;

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = dp::simt::device(dp::simt::current_device()).sticky;
  return sticky != cudaSuccess ? sticky : last_error;
}
