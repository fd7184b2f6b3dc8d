#include "kernels/cuda/tuner.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>

#include "dp/error.h"
#include "kernels/check_shapes.h"
#include "kernels/cuda/cache_folder.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/trial.h"

namespace dp::kernels::cuda {
namespace {

// The op that was chosen, and what it took.
class TunedOp final : public Op {
 public:
  TunedOp(std::unique_ptr<CudaOp> op, double microseconds) : op_(std::move(op)), microseconds_(microseconds) {}
  void run(Stream& stream, std::span<void* const> args, void* workspace) override { op_->run(stream, args, workspace); }
  std::size_t workspace_bytes() const override { return op_->workspace_bytes(); }
  const std::vector<TensorDesc>& tensors() const override { return op_->tensors(); }
  std::string implementation() const override {
    char time[32];
    std::snprintf(time, sizeof time, ", %.1f us", microseconds_);
    return op_->implementation() + time;
  }

 private:
  std::unique_ptr<CudaOp> op_;
  double microseconds_;
};

// Null where this device does not have it.
std::unique_ptr<CudaOp> made(const Way& way) {
  try {
    return way.make();
  } catch (const Error&) {
    cudaGetLastError();
    return nullptr;
  }
}

}  // namespace

std::string problem_of(const OpDesc& desc, const CudaOp& op) {
  std::string text = std::string(name_of(desc)) + shapes_of(desc);
  std::visit(
      [&](const auto& d) {
        if constexpr (requires { d.bias; }) text += d.bias ? " bias" : "";
        if constexpr (requires { d.relu; }) text += d.relu ? " relu" : "";
      },
      desc);
  for (const TensorDesc& tensor : op.tensors())
    text += std::string(" ") + to_string(tensor.type) + (order_of(tensor).channels_last ? " last" : " first");
  return text;
}

std::unique_ptr<Op> Tuner::fastest(const OpDesc& desc, std::unique_ptr<CudaOp> pinned, Others others,
                                   const std::string& variant) {
  const std::string problem = problem_of(desc, *pinned) + variant;
  const std::scoped_lock lock(mutex_);
  const auto known = cache_.find(problem);
  const auto remembered = [&](std::size_t from) -> std::unique_ptr<Op> {
    for (std::size_t i = from; known && i < others.known.size(); ++i)
      if (others.known[i].name == known->candidate)
        if (auto op = made(others.known[i])) return std::make_unique<TunedOp>(std::move(op), known->microseconds);
    return nullptr;
  };
  if (known && known->candidate == pinned->implementation())
    return std::make_unique<TunedOp>(std::move(pinned), known->microseconds);
  if (auto op = remembered(0)) return op;
  const std::size_t own = others.known.size();
  if (others.more) std::ranges::move(others.more(), std::back_inserter(others.known));
  if (auto op = remembered(own)) return op;

  std::vector<std::unique_ptr<CudaOp>> all;
  all.push_back(std::move(pinned));
  for (const Way& way : others.known)
    if (auto op = made(way)) all.push_back(std::move(op));
  std::vector<CudaOp*> ops;
  for (const auto& op : all) ops.push_back(op.get());
  const std::vector<double> times = try_all(desc, ops);
  const auto least = std::min_element(times.begin(), times.end());
  if (*least >= kUnfit) {
    auto op = others.untried ? others.untried() : nullptr;
    return op ? std::move(op) : std::move(all.front());
  }
  const auto best = static_cast<std::size_t>(least - times.begin());
  cache_.keep(problem, {all[best]->implementation(), *least});
  return std::make_unique<TunedOp>(std::move(all[best]), *least);
}

std::vector<double> Tuner::try_all(const OpDesc& desc, std::span<CudaOp* const> ops) {
  return try_ops(trial_arguments(desc), ops);
}

std::string machine_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking what a device is");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  return std::string(properties.name) + "; sm_" + std::to_string(properties.major) + std::to_string(properties.minor) +
         "; " + std::to_string(properties.multiProcessorCount) + " multiprocessors; driver " + std::to_string(driver) +
         "; runtime " + std::to_string(runtime) + "; " + library_versions() + "; own kernels 1";
}

Tuner& tuner_of(int device) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Tuner>> tuners;
  const std::string machine = machine_of(device);
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Tuner>& tuner = tuners[machine];
  if (tuner == nullptr) tuner = std::make_unique<Tuner>(cache_folder(), machine);
  return *tuner;
}

}  // namespace dp::kernels::cuda
