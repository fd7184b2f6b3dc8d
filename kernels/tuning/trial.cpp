#include "kernels/tuning/trial.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "dp/error.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/device/cuda/graph.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/linear/cuda_cublaslt.h"

namespace dp::kernels::cuda {
namespace {

constexpr std::size_t kMostCopies = 16;  // small problems stay in the cache, as in a step of a small network
constexpr std::size_t kBeyondCache = 2;  // in multiples of the cache size

std::size_t bytes_of_cache() {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device), "reading the current device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "reading the L2 cache size");
  return static_cast<std::size_t>(std::max(bytes, 0));
}

// Null if memory is short.
DeviceMemory memory_if_free(std::size_t bytes) {
  try {
    return bytes == 0 ? DeviceMemory() : device_memory(bytes);
  } catch (const Error&) {
    cudaGetLastError();
    return {};
  }
}

}  // namespace

TrialTimer::TrialTimer(cudaStream_t stream, std::vector<Argument> arguments)
    : stream_(stream),
      begin_(make_timed_event_handle()),
      end_(make_timed_event_handle()),
      arguments_(std::move(arguments)),
      overwritten_bytes_(kBeyondCache * bytes_of_cache()),
      overwritten_(memory_if_free(overwritten_bytes_)) {
  std::size_t bytes = 0;
  std::vector<void*> own;
  for (const Argument& argument : arguments_) bytes += argument.bytes, own.push_back(argument.data);
  copies_.push_back(std::move(own));
  if (bytes > 0) most_copies_ = std::clamp<std::size_t>((overwritten_bytes_ + bytes - 1) / bytes, 1, kMostCopies);
}

// Makes one copy per run, up to most_copies_. Lowers most_copies_ if memory is short.
void TrialTimer::copy_arguments(int runs) {
  while (copies_.size() < std::min(most_copies_, static_cast<std::size_t>(runs))) {
    std::vector<void*> copy;
    for (const Argument& argument : arguments_) {
      if (argument.bytes == 0) {
        copy.push_back(nullptr);
        continue;
      }
      DeviceMemory memory = memory_if_free(argument.bytes);
      if (!memory) {
        most_copies_ = copies_.size();
        return;
      }
      check(cudaMemcpyAsync(memory.get(), argument.data, argument.bytes, cudaMemcpyDeviceToDevice, stream_),
            "copying the data of a trial");
      copy.push_back(memory.get());
      memory_.push_back(std::move(memory));
    }
    copies_.push_back(std::move(copy));
  }
}

TrialTimer::Runs TrialTimer::prepare(CudaOp& op, int count, void* workspace) {
  copy_arguments(count);
  Runs runs{{}, count};
  try {
    begin_capture(stream_);
    for (int i = 0; i < count; ++i) op.run_on(stream_, arguments_of(i), workspace);
    const GraphHandle graph = end_capture(stream_);
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph.get(), 0), "instantiating a graph");
    runs.graph = GraphExecHandle(exec);
    check(cudaGraphUpload(exec, stream_), "uploading a graph");
  } catch (const Error&) {
    drop_capture(stream_);
    runs.graph = {};
  }
  return runs;
}

// Overwriting the cache also keeps the device busy until the host has enqueued the rest.
double TrialTimer::microseconds_of(const Runs& runs, CudaOp& op, void* workspace) {
  if (overwritten_)
    check(cudaMemsetAsync(overwritten_.get(), 0, overwritten_bytes_, stream_), "overwriting the L2 cache");
  check(cudaEventRecord(begin_.get(), stream_), "recording an event");
  if (runs.graph)
    check(cudaGraphLaunch(runs.graph.get(), stream_), "launching a graph");
  else
    for (int i = 0; i < runs.count; ++i) op.run_on(stream_, arguments_of(i), workspace);
  check(cudaEventRecord(end_.get(), stream_), "recording an event");
  check(cudaEventSynchronize(end_.get()), "a trial");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "measuring a trial");
  return 1e3 * static_cast<double>(milliseconds) / runs.count;
}

namespace {

constexpr int kRounds = 5;
constexpr double kRoundMicroseconds = 200;  // target duration of one candidate's runs
constexpr int kMostRuns = 50;               // per round
constexpr double kHopeless = 4;             // times the fastest first run: slower candidates are not repeated
constexpr double kRoomOfParts = 6;          // see Trial::agrees

std::size_t bytes_of(const TrialArgument& argument) { return argument.elements * size_of(argument.type); }

// The arguments, results and workspace for the trials of one problem.
class Trial {
 public:
  Trial(const std::vector<TrialArgument>& arguments, std::size_t workspace_bytes)
      : arguments_(arguments),
        stream_(make_stream_handle()),
        workspace_(device_memory(std::max<std::size_t>(workspace_bytes, 1))) {
    for (const TrialArgument& argument : arguments_) {
      const auto memory = [&](bool is) { return is ? device_memory(bytes_of(argument)) : DeviceMemory(); };
      memory_.push_back(memory(argument.elements > 0));
      pointers_.push_back(memory_.back().get());
      expected_.push_back(memory(argument.written && argument.elements > 0));
      if (!argument.written) draw(pointers_.size() - 1);
    }
  }

  // Fills the results with NaN, then runs the op.
  void write(CudaOp& op) {
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (is_result(i)) fill_with_nan(i);
    run(op);
    check(cudaStreamSynchronize(stream_.get()), "a trial");
  }
  // Stores the results of `op` as the reference for compare().
  void expect(CudaOp& op) {
    write(op);
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (is_result(i))
        check(cudaMemcpyAsync(expected_[i].get(), pointers_[i], bytes_of(arguments_[i]), cudaMemcpyDeviceToDevice,
                              stream_.get()),
              "copying results of a trial");
    numbers_ = numbers_of_nan(op);
  }
  // Whether the results of `op` equal the reference within rounding, and NaN inputs give NaN in the same number of
  // results.
  Verdict compare(CudaOp& op) {
    write(op);
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_result(i)) continue;
      const TrialArgument& argument = arguments_[i];
      const double tolerance = tolerance_of(op.rounds_to_tf32());
      if (!agrees(i, 0, argument.exact, 0)) return Verdict::differs;
      std::size_t begin = argument.exact;
      for (const std::size_t piece :
           argument.pieces.empty() ? std::vector{argument.elements - begin} : argument.pieces) {
        if (!agrees(i, begin * size_of(argument.type), piece, tolerance)) return Verdict::differs;
        begin += piece;
      }
    }
    return numbers_of_nan(op) == numbers_ ? Verdict::fit : Verdict::loses_nan;
  }

  cudaStream_t stream() const { return stream_.get(); }
  void* workspace() const { return workspace_.get(); }
  std::vector<TrialTimer::Argument> data() const {
    std::vector<TrialTimer::Argument> all;
    for (std::size_t i = 0; i < arguments_.size(); ++i) all.push_back({pointers_[i], bytes_of(arguments_[i])});
    return all;
  }

 private:
  bool is_result(std::size_t i) const { return arguments_[i].written && arguments_[i].elements > 0; }
  void draw(std::size_t i) {
    const TrialArgument& argument = arguments_[i];
    enqueue_random(stream_.get(), pointers_[i], argument.type, argument.elements, argument.middle,
                   static_cast<unsigned>(i + 1));
  }
  void fill_with_nan(std::size_t i) {
    check(cudaMemsetAsync(pointers_[i], 0xFF, bytes_of(arguments_[i]), stream_.get()), "clearing");
  }
  void run(CudaOp& op) { op.run_on(stream_.get(), pointers_, workspace_.get()); }
  // Runs the op with NaN in the arguments marked tells_nan. Returns how many results are not NaN.
  double numbers_of_nan(CudaOp& op) {
    if (std::ranges::none_of(arguments_, &TrialArgument::tells_nan)) return 0;
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].tells_nan) fill_with_nan(i);
    write(op);
    double numbers = 0;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_result(i)) continue;
      const TrialArgument& argument = arguments_[i];
      for (const Distance& part :
           distances(stream_.get(), pointers_[i], pointers_[i], argument.type, argument.elements))
        numbers += part.numbers;
    }
    for (std::size_t i = 0; i < arguments_.size(); ++i)
      if (arguments_[i].tells_nan) draw(i);
    return numbers;
  }
  // Compares the whole range relative to its norm. Also compares each part, so that a wrong tile in a large tensor is
  // found: relative to the part's norm plus its share of the whole norm. kRoomOfParts widens the tolerance of parts,
  // which vary by chance.
  bool agrees(std::size_t argument, std::size_t first_byte, std::size_t count, double tolerance) {
    if (count == 0) return true;
    const auto from = [&](void* memory) { return static_cast<const std::byte*>(memory) + first_byte; };
    const std::vector<Distance> parts = distances(stream_.get(), from(pointers_[argument]),
                                                  from(expected_[argument].get()), arguments_[argument].type, count);
    double apart = 0, norm = 0;
    for (const Distance& part : parts) apart += part.apart, norm += part.norm;
    if (!(apart <= tolerance * tolerance * norm)) return false;  // also rejects NaN
    const std::size_t length = distance_part(count);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double share = static_cast<double>(std::min(length, count - i * length)) / static_cast<double>(count);
      const double wide = kRoomOfParts * tolerance;
      if (!(parts[i].apart <= wide * wide * (parts[i].norm + share * norm))) return false;
    }
    return true;
  }
  // Tolerance relative to the norm. Sums in another order differ by rounding; wrong sums differ by much more. Products
  // of 16-bit values may be accumulated with fewer bits than float32 has. Two results rounded to 16 bits may differ in
  // their last bit. If any argument has 16 bits, float32 results may be rounded to 16 bits too (libraries' weight
  // gradients). Statistics may also be computed from values before their rounding.
  double tolerance_of(bool tf32) const {
    const auto has = [&](DType type) {
      return std::ranges::find(arguments_, type, &TrialArgument::type) != arguments_.end();
    };
    const DType low = has(DType::bf16) ? DType::bf16 : has(DType::f16) ? DType::f16 : DType::f32;
    const double sum = low != DType::f32 || tf32 ? 1e-3 : 1e-4;
    return low == DType::bf16 ? sum + 0x1p-8 : low == DType::f16 ? sum + 0x1p-11 : sum;
  }

  const std::vector<TrialArgument>& arguments_;
  StreamHandle stream_;
  std::vector<DeviceMemory> memory_, expected_;
  std::vector<void*> pointers_;
  DeviceMemory workspace_;
  double numbers_ = 0;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct BrokenDevice : Error {
  using Error::Error;
};

// Whether `use` finished without an Error. Throws BrokenDevice naming `what` if the device is unusable afterwards.
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
                       "trial of " + what + " broke the device: " + error.what() + "; use --no-autotune");
  }
}

}  // namespace

std::vector<TrialArgument> trial_arguments(const OpDesc& desc) {
  const auto count = [](const TensorDesc& t) { return static_cast<std::size_t>(t.shape.numel()); };
  const auto read = [&](const TensorDesc& t) { return TrialArgument{count(t), t.type, false}; };
  // Data with a mean that is not zero, so that statistics that ignore the mean are detected.
  const auto uneven = [&](const TensorDesc& t) { return TrialArgument{count(t), t.type, false, 0.5f}; };
  const auto telling = [](TrialArgument argument) {
    argument.tells_nan = true;
    return argument;
  };
  const auto written = [&](const TensorDesc& t) { return TrialArgument{count(t), t.type, true}; };
  const auto bias = [](bool is, const TensorDesc& weights, bool gradient) {
    return TrialArgument{is ? static_cast<std::size_t>(weights.shape[0]) : 0, DType::f32, gradient};
  };
  // Arguments of batch normalisation.
  const auto many = [](const TensorDesc& x) { return static_cast<std::size_t>(x.shape[1]); };
  const auto channels = [&](const TensorDesc& x, bool gradient = false) {
    return TrialArgument{many(x), DType::f32, gradient};
  };
  const auto stats = [&](const TensorDesc& x) { return TrialArgument{1 + 2 * many(x), DType::f64, false}; };
  const auto doubles = [&](std::size_t first, const TensorDesc& x) {
    return TrialArgument{first + 2 * many(x), DType::f64, true, 0, first, {many(x), many(x)}};
  };
  const TrialArgument none{};
  return std::visit(
      [&](const auto& d) -> std::vector<TrialArgument> {
        using Desc = std::decay_t<decltype(d)>;
        if constexpr (std::is_same_v<Desc, Conv2dForward> || std::is_same_v<Desc, LinearForward>)
          return {telling(read(d.x)), read(d.w), bias(d.bias, d.w, false), written(d.y)};
        else if constexpr (std::is_same_v<Desc, Conv2dBackwardData> || std::is_same_v<Desc, LinearBackwardData>)
          return {read(d.dy), read(d.w), written(d.dx)};
        else if constexpr (std::is_same_v<Desc, Conv2dBackwardWeights> || std::is_same_v<Desc, LinearBackwardWeights>)
          return {read(d.x), read(d.dy), written(d.dw), bias(d.bias, d.dw, true)};
        else if constexpr (std::is_same_v<Desc, BatchNormForward>)
          return {read(d.x), stats(d.x), channels(d.x), channels(d.x), d.add ? read(d.x) : none, written(d.x)};
        else if constexpr (std::is_same_v<Desc, NormConv2dForward>)
          return {telling(uneven(d.x)),
                  d.norm ? stats(d.x) : none,
                  d.norm ? channels(d.x) : none,
                  d.norm ? channels(d.x) : none,
                  read(d.w),
                  written(d.y),
                  d.moments ? doubles(1, d.y) : none,
                  d.eps ? doubles(1, d.y) : none};
        else if constexpr (std::is_same_v<Desc, NormConv2dBackwardData>)
          return {uneven(d.dy),
                  read(d.w),
                  d.add ? uneven(d.dx) : none,
                  uneven(d.dx),
                  d.relu && !d.renormalize ? read(d.dx) : none,
                  stats(d.dx),
                  d.renormalize ? channels(d.dx) : none,
                  d.renormalize ? channels(d.dx) : none,
                  doubles(0, d.dx),
                  channels(d.dx, true),
                  channels(d.dx, true),
                  written(d.dx)};
        else if constexpr (std::is_same_v<Desc, NormConv2dBackwardWeights>)
          return {uneven(d.x), stats(d.x), channels(d.x), channels(d.x), read(d.dy), written(d.dw)};
        else
          return {};
      },
      desc);
}

bool has_candidates(const OpDesc& desc) {
  return !std::holds_alternative<BatchNormForward>(desc) && !trial_arguments(desc).empty();
}

void run_once(const std::vector<TrialArgument>& arguments, CudaOp& op) {
  succeeds(op.implementation(), [&] { Trial(arguments, op.workspace_bytes()).write(op); });
}

std::string note_of(const TrialResult& result) {
  switch (result.verdict) {
    case Verdict::fit: return result.eager ? "timed without a graph" : "";
    case Verdict::failed: return "failed";
    case Verdict::differs: return "differs from the baseline";
    case Verdict::loses_nan: return "loses NaN";
    case Verdict::untried: return "not tried";
  }
  return "";
}

std::vector<TrialResult> try_ops(const std::vector<TrialArgument>& arguments, std::span<CudaOp* const> ops,
                                 const std::function<bool()>& out_of_time) {
  const auto no_time = [&] { return out_of_time && out_of_time(); };
  std::vector<TrialResult> results(ops.size());
  std::vector<std::size_t> workspaces;
  for (const CudaOp* const op : ops) workspaces.push_back(op->workspace_bytes());
  const auto try_with = [&](std::size_t workspace) {
    Trial trial(arguments, workspace);
    TrialTimer timer(trial.stream(), trial.data());
    std::vector<std::vector<double>> rounds(ops.size());
    std::vector<TrialTimer::Runs> runs(ops.size());
    const auto time = [&](std::size_t i) { return timer.microseconds_of(runs[i], *ops[i], trial.workspace()); };
    trial.expect(*ops.front());
    double least = kUnfit;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (workspaces[i] > workspace || (i > 0 && no_time())) continue;
      const bool ran = succeeds(ops[i]->implementation(), [&] {
        results[i].verdict = trial.compare(*ops[i]);
        if (results[i].verdict != Verdict::fit) return;
        runs[i] = timer.prepare(*ops[i], 1, trial.workspace());
        results[i] = {Verdict::fit, time(i), !runs[i].graph};
      });
      if (!ran) results[i] = {Verdict::failed};
      least = std::min(least, results[i].microseconds);
    }
    for (int round = 0; round < kRounds && !no_time(); ++round)  // round robin: the GPU clock may change
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const double once = results[i].microseconds;
        if (once >= kUnfit || once > kHopeless * least) continue;
        const bool ran = succeeds(ops[i]->implementation(), [&] {
          if (round == 0)
            runs[i] = timer.prepare(
                *ops[i], std::clamp(static_cast<int>(kRoundMicroseconds / std::max(once, 1.0)), 1, kMostRuns),
                trial.workspace());
          rounds[i].push_back(time(i));
        });
        if (!ran) results[i] = {Verdict::failed};
      }
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (results[i].verdict == Verdict::fit && !rounds[i].empty())
        results[i] = {Verdict::fit, median(rounds[i]), !runs[i].graph};
  };
  // If memory is short for the largest workspace, retries with smaller ones. Candidates that need more stay untried.
  std::set<std::size_t, std::greater<>> sizes(workspaces.begin(), workspaces.end());
  for (const std::size_t workspace : sizes) {
    if (workspace < workspaces.front()) break;
    if (succeeds("the candidates of an op", [&] { try_with(workspace); })) break;
    std::ranges::fill(results, TrialResult{});
  }
  return results;
}

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
