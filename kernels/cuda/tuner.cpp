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
#include "kernels/cuda/trial_log.h"

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
        if constexpr (requires { d.norm; }) text += d.norm ? " norm" : "";
        if constexpr (requires { d.moments; }) text += d.moments ? " moments" : "";
        if constexpr (requires { d.add; }) text += d.add ? " add" : "";
        if constexpr (requires { d.renormalize; }) text += d.renormalize ? " renormalize" : "";
      },
      desc);
  for (const TensorDesc& tensor : op.tensors())
    text += std::string(" ") + to_string(tensor.type) + (order_of(tensor).channels_last ? " last" : " first");
  return text;
}

Tuner::Known Tuner::look_up(const std::string& problem) {
  const std::scoped_lock lock(mutex_);
  return {cache_.find(problem), hopeless_.contains(problem)};
}

Tuner::Choice Tuner::choose(const OpDesc& desc, std::unique_ptr<CudaOp> pinned, const Others& others,
                            const std::string& variant) {
  const std::string problem = problem_of(desc, *pinned) + variant;
  const auto nothing_tried = [&]() -> Choice {
    auto op = others.untried ? others.untried() : nullptr;
    return {op ? std::move(op) : std::move(pinned)};
  };
  const auto remembered = [&](const TunedChoice& known, const std::vector<Way>& ways) -> Choice {
    for (const Way& way : ways)
      if (way.name == known.candidate)
        if (auto op = made(way)) return {std::move(op), known.microseconds};
    return {};
  };
  std::vector<Way> more;
  bool asked = false;
  const auto known_choice = [&]() -> Choice {
    const Known known = look_up(problem);
    if (known.hopeless) return nothing_tried();
    if (!known.choice) return {};
    if (known.choice->candidate == pinned->implementation()) return {std::move(pinned), known.choice->microseconds};
    if (Choice choice = remembered(*known.choice, others.known); choice.op) return choice;
    if (!asked && others.more) more = others.more(), asked = true;
    return remembered(*known.choice, more);
  };
  if (Choice choice = known_choice(); choice.op) return choice;
  if (!asked && others.more) more = others.more(), asked = true;
  const std::scoped_lock lock(trying_);
  if (Choice choice = known_choice(); choice.op) return choice;  // another replica was faster

  std::vector<std::unique_ptr<CudaOp>> all;
  all.push_back(std::move(pinned));
  const auto add = [&](const std::vector<Way>& ways) {
    for (const Way& way : ways)
      if (auto op = made(way)) all.push_back(std::move(op));
  };
  add(others.known), add(more);
  std::vector<CudaOp*> ops;
  for (const auto& op : all) ops.push_back(op.get());
  const std::vector<double> times = try_all(desc, ops);
  log_trial(problem, ops, times);
  const auto least = std::min_element(times.begin(), times.end());
  if (*least >= kUnfit) {
    pinned = std::move(all.front());
    const std::scoped_lock keeping(mutex_);
    hopeless_.insert(problem);
    return nothing_tried();
  }
  auto& best = all[static_cast<std::size_t>(least - times.begin())];
  const std::scoped_lock keeping(mutex_);
  cache_.keep(problem, {best->implementation(), *least});
  return {std::move(best), *least, true};
}

std::unique_ptr<Op> as_op(Tuner::Choice choice) {
  if (!choice.microseconds) return std::move(choice.op);
  return std::make_unique<TunedOp>(std::move(choice.op), *choice.microseconds);
}

std::optional<double> Tuner::known_microseconds(const OpDesc& desc, const CudaOp& pinned, const std::string& variant) {
  const std::scoped_lock lock(mutex_);
  const auto known = cache_.find(problem_of(desc, pinned) + variant);
  if (!known) return {};
  return known->microseconds;
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
         "; runtime " + std::to_string(runtime) + "; " + library_versions() + "; own kernels 3";
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
