#include "kernels/cuda/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>

#include "dp/error.h"
#include "kernels/check_shapes.h"
#include "kernels/cuda/cache_folder.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/owner.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundMicroseconds = 200;  // of one way, at least
constexpr int kMostRuns = 50;               // in a round
constexpr double kTolerance = 1e-4;  // of the norm: sums in another order differ by rounding, wrong ones by much more

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

// Data for the runs of one problem.
class Trial {
 public:
  Trial(const std::vector<TrialArgument>& arguments, std::size_t workspace_bytes)
      : arguments_(arguments),
        stream_(make_stream_handle()),
        begin_(make_timed_event_handle()),
        end_(make_timed_event_handle()) {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> values(-1, 1);
    for (const TrialArgument& argument : arguments_) {
      memory_.push_back(argument.elements == 0 ? DeviceMemory() : device_memory(argument.elements * sizeof(float)));
      pointers_.push_back(memory_.back().get());
      if (argument.elements == 0 || argument.written) continue;
      std::vector<float> random(argument.elements);
      for (float& value : random) value = values(generator);
      check(cudaMemcpyAsync(pointers_.back(), random.data(), random.size() * sizeof(float), cudaMemcpyHostToDevice,
                            stream_.get()),
            "copying data for a trial");
      check(cudaStreamSynchronize(stream_.get()), "copying data for a trial");
    }
    workspace_ = device_memory(std::max<std::size_t>(workspace_bytes, 1));
  }

  // What the op writes, into memory that was full of NaN.
  std::vector<float> results_of(CudaOp& op) {
    std::vector<float> all;
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].written && arguments_[i].elements > 0)
        check(cudaMemsetAsync(pointers_[i], 0xFF, arguments_[i].elements * sizeof(float), stream_.get()), "clearing");
    run(op);
    check(cudaStreamSynchronize(stream_.get()), "a trial");
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!arguments_[i].written || arguments_[i].elements == 0) continue;
      std::vector<float> part(arguments_[i].elements);
      check(cudaMemcpyAsync(part.data(), pointers_[i], part.size() * sizeof(float), cudaMemcpyDeviceToHost,
                            stream_.get()),
            "copying results of a trial");
      check(cudaStreamSynchronize(stream_.get()), "copying results of a trial");
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  double microseconds_of(CudaOp& op, int runs) {
    check(cudaEventRecord(begin_.get(), stream_.get()), "recording an event");
    for (int i = 0; i < runs; ++i) run(op);
    check(cudaEventRecord(end_.get(), stream_.get()), "recording an event");
    check(cudaEventSynchronize(end_.get()), "a trial");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "measuring a trial");
    return 1e3 * static_cast<double>(milliseconds) / runs;
  }

 private:
  void run(CudaOp& op) { op.run_on(stream_.get(), pointers_, workspace_.get()); }

  const std::vector<TrialArgument>& arguments_;
  StreamHandle stream_;
  EventHandle begin_, end_;
  std::vector<DeviceMemory> memory_;
  std::vector<void*> pointers_;
  DeviceMemory workspace_;
};

bool agree(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    apart += difference * difference;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return apart <= kTolerance * kTolerance * norm;  // not so with a NaN
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

std::vector<TrialArgument> trial_arguments(const OpDesc& desc) {
  const auto read = [](const TensorDesc& t) { return TrialArgument{static_cast<std::size_t>(t.shape.numel()), false}; };
  const auto written = [](const TensorDesc& t) {
    return TrialArgument{static_cast<std::size_t>(t.shape.numel()), true};
  };
  const auto bias = [](bool is, const TensorDesc& weights, bool gradient) {
    return TrialArgument{is ? static_cast<std::size_t>(weights.shape[0]) : 0, gradient};
  };
  return std::visit(
      [&](const auto& d) -> std::vector<TrialArgument> {
        using Desc = std::decay_t<decltype(d)>;
        if constexpr (std::is_same_v<Desc, Conv2dForward> || std::is_same_v<Desc, LinearForward>)
          return {read(d.x), read(d.w), bias(d.bias, d.w, false), written(d.y)};
        else if constexpr (std::is_same_v<Desc, Conv2dBackwardData> || std::is_same_v<Desc, LinearBackwardData>)
          return {read(d.dy), read(d.w), written(d.dx)};
        else if constexpr (std::is_same_v<Desc, Conv2dBackwardWeights> || std::is_same_v<Desc, LinearBackwardWeights>)
          return {read(d.x), read(d.dy), written(d.dw), bias(d.bias, d.dw, true)};
        else
          return {};
      },
      desc);
}

std::string problem_of(const OpDesc& desc, const CudaOp& op) {
  std::string text = std::string(name_of(desc)) + shapes_of(desc);
  std::visit(
      [&](const auto& d) {
        if constexpr (requires { d.bias; }) text += d.bias ? " bias" : "";
        if constexpr (requires { d.relu; }) text += d.relu ? " relu" : "";
      },
      desc);
  for (const TensorDesc& tensor : op.tensors()) text += order_of(tensor).channels_last ? " last" : " first";
  return text;
}

std::unique_ptr<Op> Tuner::fastest(const OpDesc& desc, std::unique_ptr<CudaOp> pinned, const Make& make) {
  const std::vector<GemmChoice> alternatives = pinned->alternatives();
  if (alternatives.empty()) return pinned;
  const std::string problem = problem_of(desc, *pinned);
  std::vector<std::unique_ptr<CudaOp>> all;
  all.push_back(std::move(pinned));
  for (const GemmChoice& choice : alternatives) all.push_back(make(choice));
  const auto take = [&](std::size_t i, double microseconds) -> std::unique_ptr<Op> {
    return std::make_unique<TunedOp>(std::move(all[i]), microseconds);
  };
  const std::scoped_lock lock(mutex_);
  if (const auto known = cache_.find(problem))
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i]->implementation() == known->candidate) return take(i, known->microseconds);
  std::vector<CudaOp*> ops;
  for (const auto& op : all) ops.push_back(op.get());
  const std::vector<double> times = try_all(desc, ops);
  const auto least = std::min_element(times.begin(), times.end());
  if (*least >= kUnfit) return std::move(all.front());
  const auto best = static_cast<std::size_t>(least - times.begin());
  cache_.keep(problem, {all[best]->implementation(), *least});
  return take(best, *least);
}

std::vector<double> Tuner::try_all(const OpDesc& desc, std::span<CudaOp* const> ops) {
  const std::vector<TrialArgument> arguments = trial_arguments(desc);
  std::size_t workspace = 0;
  for (const CudaOp* const op : ops) workspace = std::max(workspace, op->workspace_bytes());
  std::vector<double> times(ops.size(), kUnfit);
  try {
    Trial trial(arguments, workspace);
    const std::vector<float> expected = trial.results_of(*ops.front());
    std::vector<int> runs(ops.size(), 0);
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (agree(trial.results_of(*ops[i]), expected)) {
        const double once = trial.microseconds_of(*ops[i], 1);
        runs[i] = std::clamp(static_cast<int>(kRoundMicroseconds / std::max(once, 1.0)), 1, kMostRuns);
      }
    std::vector<std::vector<double>> rounds(ops.size());
    for (int round = 0; round < kRounds; ++round)  // in turns, so that a clock that changes meets all of them
      for (std::size_t i = 0; i < ops.size(); ++i)
        if (runs[i] > 0) rounds[i].push_back(trial.microseconds_of(*ops[i], runs[i]));
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (runs[i] > 0) times[i] = median(rounds[i]);
  } catch (const Error&) {  // no memory for a trial: what is pinned serves
    cudaGetLastError();
    times.assign(ops.size(), kUnfit);
  }
  return times;
}

Tuner& tuner_of(int device) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Tuner>> tuners;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking what a device is");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  const std::string machine = std::string(properties.name) + "; sm_" + std::to_string(properties.major) +
                              std::to_string(properties.minor) + "; " + std::to_string(properties.multiProcessorCount) +
                              " multiprocessors; driver " + std::to_string(driver) + "; runtime " +
                              std::to_string(runtime) + "; own kernels 1";
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Tuner>& tuner = tuners[machine];
  if (tuner == nullptr) tuner = std::make_unique<Tuner>(cache_folder(), machine);
  return *tuner;
}

}  // namespace dp::kernels::cuda
