// Selects the fastest candidate, caches the choice and reports it.
#include "kernels/tuning/tuner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "dp/error.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/tuning/tuning_cache.h"

namespace dp::kernels::cuda {
namespace {

std::string machine_of_all(std::span<const Device> devices) {
  std::string all;
  for (const Device& device : devices) all += to_string(device) + " is " + machine_of(device.index) + "; ";
  return all;
}

}  // namespace

// Reads the file on every call; a run calls it once.
std::optional<double> remembered(std::span<const Device> devices, const std::string& what) {
  const auto found = TuningCache(cache_folder(), machine_of_all(devices)).find(what);
  if (!found) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(found->candidate.c_str(), &end);
  return *end == '\0' && end != found->candidate.c_str() && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

void remember(std::span<const Device> devices, const std::string& what, double value) {
  TuningCache(cache_folder(), machine_of_all(devices)).keep(what, {std::to_string(value), 0});
}

namespace {

void append(const std::string& problem, const std::string& candidate, const std::string& time,
            const std::string& note) {
  const char* const file = std::getenv("DP_TUNING_LOG");
  if (file == nullptr || *file == '\0') return;
  append_line(file, problem + "\t" + candidate + "\t" + time + (note.empty() ? "" : "\t" + note));
}

}  // namespace

void log_trial(const std::string& problem, std::span<CudaOp* const> ops, std::span<const TrialResult> results) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    char time[32] = "-";
    if (results[i].microseconds < kUnfit) std::snprintf(time, sizeof time, "%.3f", results[i].microseconds);
    append(problem, ops[i]->implementation(), time, note_of(results[i]));
  }
}

void log_untried(const std::string& problem, const std::string& candidate, const std::string& why) {
  append(problem, candidate, "-", "not tried: " + why);
}

namespace {

// The chosen op, with its time and note in implementation().
class TunedOp final : public Op {
 public:
  explicit TunedOp(Tuner::Choice choice) : choice_(std::move(choice)) {}
  void run(Stream& stream, std::span<void* const> args, void* workspace) override {
    choice_.op->run(stream, args, workspace);
  }
  std::size_t workspace_bytes() const override { return choice_.op->workspace_bytes(); }
  const std::vector<TensorDesc>& tensors() const override { return choice_.op->tensors(); }
  std::string implementation() const override {
    char time[32] = "";
    if (choice_.microseconds) std::snprintf(time, sizeof time, ", %.1f us", *choice_.microseconds);
    return choice_.op->implementation() + time + (choice_.note.empty() ? "" : ", " + choice_.note);
  }

 private:
  Tuner::Choice choice_;
};

// Time limit for trials in seconds; nullopt: no limit.
std::optional<double> tuning_limit() {
  const char* const text = std::getenv("DP_TUNING_SECONDS");
  if (text == nullptr || *text == '\0') return {};
  char* end = nullptr;
  const double limit = std::strtod(text, &end);
  if (*end != '\0' || !(limit >= 0))
    throw Error(ErrorCode::usage, std::string("DP_TUNING_SECONDS is '") + text + "'; give a number of seconds");
  return limit;
}

std::string over(double limit) {
  char text[64];
  std::snprintf(text, sizeof text, "the %g s of DP_TUNING_SECONDS are over", limit);
  return text;
}

// Null if the candidate is not available on this device.
std::unique_ptr<CudaOp> made(const Candidate& candidate) {
  try {
    return candidate.make();
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
  const auto note = notes_.find(problem);
  return {cache_.find(problem), hopeless_.contains(problem), note == notes_.end() ? std::string() : note->second};
}

Tuner::Choice Tuner::untried(const std::string& problem, std::unique_ptr<CudaOp> baseline, const Others& others,
                             double limit) {
  auto op = others.untried ? others.untried() : nullptr;
  if (op == nullptr) op = std::move(baseline);
  const std::scoped_lock lock(mutex_);
  if (notes_.emplace(problem, "not tried: " + over(limit)).second)
    log_untried(problem, op->implementation(), over(limit));
  return {std::move(op), {}, notes_[problem]};
}

Tuner::Choice Tuner::choose(const OpDesc& desc, std::unique_ptr<CudaOp> baseline, const Others& others,
                            const std::string& variant) {
  const std::string problem = problem_of(desc, *baseline) + variant;
  const std::optional<double> limit = tuning_limit();
  const auto nothing_tried = [&]() -> Choice {
    auto op = others.untried ? others.untried() : nullptr;
    return {op ? std::move(op) : std::move(baseline)};
  };
  const auto remembered = [&](const Known& known, const std::vector<Candidate>& candidates) -> Choice {
    for (const Candidate& candidate : candidates)
      if (candidate.name == known.choice->candidate)
        if (auto op = made(candidate)) return {std::move(op), known.choice->microseconds, known.note};
    return {};
  };
  std::vector<Candidate> more;
  bool asked = false;
  const auto known_choice = [&]() -> Choice {
    const Known known = look_up(problem);
    if (known.hopeless) return nothing_tried();
    if (!known.choice) return {};
    if (known.choice->candidate == baseline->implementation())
      return {std::move(baseline), known.choice->microseconds, known.note};
    if (Choice choice = remembered(known, others.known); choice.op) return choice;
    if (!asked && others.more) more = others.more(), asked = true;
    return remembered(known, more);
  };
  if (Choice choice = known_choice(); choice.op) return choice;
  if (limit && spent_ >= *limit) return untried(problem, std::move(baseline), others, *limit);
  if (!asked && others.more) more = others.more(), asked = true;
  const std::scoped_lock lock(trying_);
  if (Choice choice = known_choice(); choice.op) return choice;  // another replica has tried it meanwhile
  const double before = spent_, begin = seconds();
  const auto out_of_time = [&] { return limit && before + seconds() - begin >= *limit; };
  if (out_of_time()) return untried(problem, std::move(baseline), others, *limit);

  std::vector<std::unique_ptr<CudaOp>> all;
  all.push_back(std::move(baseline));
  std::size_t offered = 1;
  for (const std::vector<Candidate>* const candidates :
       {&others.known, static_cast<const std::vector<Candidate>*>(&more)})
    for (const Candidate& candidate : *candidates) {
      ++offered;
      if (out_of_time()) continue;  // making a library's op may compile for seconds
      if (auto op = made(candidate)) all.push_back(std::move(op));
    }
  const bool all_made = !out_of_time();
  std::vector<CudaOp*> ops;
  for (const auto& op : all) ops.push_back(op.get());
  const std::vector<TrialResult> results = try_all(desc, ops, out_of_time);
  spent_ = before + seconds() - begin;
  log_trial(problem, ops, results);
  const auto least = std::ranges::min_element(results, {}, &TrialResult::microseconds);
  const std::scoped_lock keeping(mutex_);
  if (least->microseconds >= kUnfit) {
    baseline = std::move(all.front());
    hopeless_.insert(problem);
    return nothing_tried();
  }
  auto& best = all[static_cast<std::size_t>(least - results.begin())];
  const bool whole = all_made && std::ranges::count(results, Verdict::untried, &TrialResult::verdict) == 0;
  std::string note;
  if (limit && !whole && out_of_time()) {
    const auto tried =
        std::ranges::count_if(results, [](const TrialResult& r) { return r.verdict != Verdict::untried; });
    note = notes_[problem] = std::to_string(tried) + " of " + std::to_string(offered) + " tried: " + over(*limit);
  }
  cache_.keep(problem, {best->implementation(), least->microseconds}, note.empty());
  return {std::move(best), least->microseconds, note, true};
}

std::unique_ptr<Op> as_op(Tuner::Choice choice) {
  if (!choice.microseconds && choice.note.empty()) return std::move(choice.op);
  return std::make_unique<TunedOp>(std::move(choice));
}

std::optional<double> Tuner::known_microseconds(const OpDesc& desc, const CudaOp& baseline,
                                                const std::string& variant) {
  const std::scoped_lock lock(mutex_);
  const auto known = cache_.find(problem_of(desc, baseline) + variant);
  if (!known) return {};
  return known->microseconds;
}

std::vector<TrialResult> Tuner::try_all(const OpDesc& desc, std::span<CudaOp* const> ops,
                                        const std::function<bool()>& out_of_time) {
  return try_ops(trial_arguments(desc), ops, out_of_time);
}

double Tuner::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string machine_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading device properties");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "reading the driver version");
  check(cudaRuntimeGetVersion(&runtime), "reading the runtime version");
  return std::string(properties.name) + "; sm_" + std::to_string(properties.major) + std::to_string(properties.minor) +
         "; " + std::to_string(properties.multiProcessorCount) + " multiprocessors; driver " + std::to_string(driver) +
         "; runtime " + std::to_string(runtime) + "; " + library_versions() +
         "; own kernels 5; trials in graphs, beyond the cache";
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
