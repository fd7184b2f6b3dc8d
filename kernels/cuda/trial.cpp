#include "kernels/cuda/trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "dp/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/owner.h"
#include "kernels/low_float.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kRounds = 5;
constexpr double kRoundMicroseconds = 200;  // of one way, at least
constexpr int kMostRuns = 50;               // in a round

// Calls use.operator()<T>() with the type that elements of `type` have.
template <typename Use>
decltype(auto) with_type(DType type, const Use& use) {
  if (type == DType::bf16) return use.template operator()<BFloat16>();
  if (type == DType::f16) return use.template operator()<Float16>();
  return use.template operator()<float>();
}

std::size_t bytes_of(const TrialArgument& argument) { return argument.elements * size_of(argument.type); }

std::vector<std::byte> random_values(const TrialArgument& argument, std::mt19937& generator) {
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<std::byte> bytes(bytes_of(argument));
  with_type(argument.type, [&]<typename T>() {
    for (std::size_t i = 0; i < argument.elements; ++i) {
      const T value = from_float<T>(values(generator));
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
    }
  });
  return bytes;
}

float value_at(const std::vector<std::byte>& bytes, DType type, std::size_t i) {
  return with_type(type, [&]<typename T>() {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof value);
    return to_float(value);
  });
}

// Memory for the runs of one problem.
class Trial {
 public:
  using Results = std::vector<std::vector<std::byte>>;  // of each argument, empty where it is only read

  Trial(const std::vector<TrialArgument>& arguments, std::size_t workspace_bytes)
      : arguments_(arguments),
        stream_(make_stream_handle()),
        begin_(make_timed_event_handle()),
        end_(make_timed_event_handle()) {
    std::mt19937 generator(1);
    for (const TrialArgument& argument : arguments_) {
      memory_.push_back(argument.elements == 0 ? DeviceMemory() : device_memory(bytes_of(argument)));
      pointers_.push_back(memory_.back().get());
      if (argument.elements == 0 || argument.written) continue;
      const std::vector<std::byte> random = random_values(argument, generator);
      copy(pointers_.back(), random.data(), random.size(), cudaMemcpyHostToDevice);
    }
    workspace_ = device_memory(std::max<std::size_t>(workspace_bytes, 1));
  }

  // What the op writes, into memory that was full of NaN.
  Results results_of(CudaOp& op) {
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (is_result(i)) check(cudaMemsetAsync(pointers_[i], 0xFF, bytes_of(arguments_[i]), stream_.get()), "clearing");
    run(op);
    check(cudaStreamSynchronize(stream_.get()), "a trial");
    Results results(arguments_.size());
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_result(i)) continue;
      results[i].resize(bytes_of(arguments_[i]));
      copy(results[i].data(), pointers_[i], results[i].size(), cudaMemcpyDeviceToHost);
    }
    return results;
  }

  // Whether two results are the same but for rounding; `tf32`: of what is multiplied, too.
  bool agree(const Results& a, const Results& b, bool tf32) const {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_result(i)) continue;
      double apart = 0, norm = 0;
      for (std::size_t at = 0; at < arguments_[i].elements; ++at) {
        const double value = value_at(b[i], arguments_[i].type, at);
        const double difference = value_at(a[i], arguments_[i].type, at) - value;
        apart += difference * difference;
        norm += value * value;
      }
      const double tolerance = tolerance_of(arguments_[i].type, tf32);
      if (!(apart <= tolerance * tolerance * norm)) return false;  // NaN differs
    }
    return true;
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
  bool is_result(std::size_t i) const { return arguments_[i].written && arguments_[i].elements > 0; }
  void run(CudaOp& op) { op.run_on(stream_.get(), pointers_, workspace_.get()); }
  void copy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(dst, src, bytes, kind, stream_.get()), "copying data of a trial");
    check(cudaStreamSynchronize(stream_.get()), "copying data of a trial");
  }
  // Of the norm. Sums in another order differ by rounding, wrong ones by much more; those of 16-bit values may have been added
  // with fewer bits than float32 has; two results that are rounded to 16 bits are apart by up to their last bit.
  double tolerance_of(DType result, bool tf32) const {
    const bool low = std::any_of(arguments_.begin(), arguments_.end(),
                                 [](const TrialArgument& argument) { return size_of(argument.type) == 2; });
    const double sum = low || tf32 ? 1e-3 : 1e-4;
    return result == DType::bf16 ? sum + 0x1p-8 : result == DType::f16 ? sum + 0x1p-11 : sum;
  }

  const std::vector<TrialArgument>& arguments_;
  StreamHandle stream_;
  EventHandle begin_, end_;
  std::vector<DeviceMemory> memory_;
  std::vector<void*> pointers_;
  DeviceMemory workspace_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct BrokenDevice : Error {
  using Error::Error;
};

// Whether `use` ended without an Error. BrokenDevice naming what was tried where nothing more can be done on the device.
template <typename Use>
bool succeeds(const std::string& what, const Use& use) {
  try {
    use();
    return true;
  } catch (const BrokenDevice&) {
    throw;
  } catch (const Error& error) {
    cudaGetLastError();
    if (cudaDeviceSynchronize() == cudaSuccess) return false;
    throw BrokenDevice(ErrorCode::device,
                       "trying " + what + " broke the device: " + error.what() + "; leave it out with --no-autotune");
  }
}

}  // namespace

std::vector<TrialArgument> trial_arguments(const OpDesc& desc) {
  const auto count = [](const TensorDesc& t) { return static_cast<std::size_t>(t.shape.numel()); };
  const auto read = [&](const TensorDesc& t) { return TrialArgument{count(t), t.type, false}; };
  const auto written = [&](const TensorDesc& t) { return TrialArgument{count(t), t.type, true}; };
  const auto bias = [](bool is, const TensorDesc& weights, bool gradient) {
    return TrialArgument{is ? static_cast<std::size_t>(weights.shape[0]) : 0, DType::f32, gradient};
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

std::vector<double> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops) {
  std::size_t workspace = 0;
  for (const CudaOp* const op : ops) workspace = std::max(workspace, op->workspace_bytes());
  std::vector<double> times(ops.size(), kUnfit);
  std::vector<std::vector<double>> rounds(ops.size());
  succeeds("ways to compute an op", [&] {
    Trial trial(arguments, workspace);
    const Trial::Results expected = trial.results_of(*ops.front());
    std::vector<int> runs(ops.size(), 0);  // none: it is out
    for (std::size_t i = 0; i < ops.size(); ++i)
      succeeds(ops[i]->implementation(), [&] {
        if (!trial.agree(trial.results_of(*ops[i]), expected, ops[i]->rounds_to_tf32())) return;
        const double once = trial.microseconds_of(*ops[i], 1);
        runs[i] = std::clamp(static_cast<int>(kRoundMicroseconds / std::max(once, 1.0)), 1, kMostRuns);
      });
    for (int round = 0; round < kRounds; ++round)  // in turns, so that a clock that changes meets all of them
      for (std::size_t i = 0; i < ops.size(); ++i)
        if (runs[i] > 0 &&
            !succeeds(ops[i]->implementation(), [&] { rounds[i].push_back(trial.microseconds_of(*ops[i], runs[i])); }))
          runs[i] = 0;
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (runs[i] > 0) times[i] = median(rounds[i]);
  });
  return times;
}

}  // namespace dp::kernels::cuda
