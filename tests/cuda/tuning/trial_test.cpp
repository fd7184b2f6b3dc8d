// How candidates are timed: as graph nodes, on data larger than the cache, within a time limit.
#include "kernels/tuning/trial.h"

#include <set>

#include "cuda/simulated_gpus.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"
#include "simulated_cuda/calls.h"
#include "simulated_cuda/sleep.h"

using namespace dp;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

// Copies its first argument to its second.
class Copy final : public CudaOp {
 public:
  enum Kind { plain, slow, waits };
  explicit Copy(Kind kind = plain) : kind_(kind) {}
  std::size_t workspace_bytes() const override { return 0; }
  int launches = 0;
  std::set<void*> sources;

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    ++launches;
    sources.insert(args[0]);
    if (kind_ == slow) simt::sleep_in(stream, 3);
    check(simt::copy_in(stream, args[1], args[0], kBytes), "copying");
    if (kind_ == waits) check(simt::wait_for(stream), "waiting");
  }

 public:
  static constexpr std::size_t kBytes = 8192;

 private:
  Kind kind_;
};

std::vector<TrialArgument> copied() {
  return {{Copy::kBytes / 4, DType::f32, false}, {Copy::kBytes / 4, DType::f32, true}};
}

}  // namespace

TEST_CASE("trial: a candidate is timed on the device, and the host does not launch it meanwhile") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  Copy baseline(Copy::slow), second(Copy::slow);
  CudaOp* const ops[] = {&baseline, &second};
  for (const TrialResult& result : try_ops(copied(), ops)) {
    REQUIRE(result.verdict == Verdict::fit);
    CHECK(result.microseconds >= 3000);
    CHECK(!result.eager);
    CHECK(note_of(result).empty());
  }
  // Once to compare its results, and once into each of two graphs: for the first time, and for the five that follow.
  CHECK(second.launches <= 3);
}

TEST_CASE("trial: an op that cannot be captured is timed by single launches, and the log states it") {
  SimulatedGpus machine(1);
  Copy baseline, waiting(Copy::waits);
  CudaOp* const ops[] = {&baseline, &waiting};
  const std::vector<TrialResult> results = try_ops(copied(), ops);
  REQUIRE(results[1].verdict == Verdict::fit);
  CHECK(results[1].microseconds < kUnfit);
  CHECK(note_of(results[1]) == "timed without a graph");
  CHECK(note_of(results[0]).empty());
  CHECK(simt::take_reports().size() == 1);  // the call that capture refused
}

TEST_CASE("trial: consecutive runs alternate between data larger than the cache, as far as memory permits") {
  SimulatedGpus machine(1);
  simt::simulation().l2_cache = 7 * Copy::kBytes;  // the data is twice the cache: 7 copies of both arguments
  bind_device(0);
  const StreamHandle stream = make_stream_handle();
  const DeviceMemory from = device_memory(Copy::kBytes), to = device_memory(Copy::kBytes);
  const auto sources_of = [&](TrialTimer& timer, int runs) {
    Copy op;
    const TrialTimer::Runs prepared = timer.prepare(op, runs, nullptr);
    CHECK(prepared.graph);
    const int launches = op.launches;
    CHECK(timer.microseconds_of(prepared, op, nullptr) > 0);
    CHECK(op.launches == launches);  // the graph contains the launches
    CHECK(launches == runs);
    return op.sources.size();
  };
  const std::vector<TrialTimer::Argument> arguments{{from.get(), Copy::kBytes}, {to.get(), Copy::kBytes}};
  TrialTimer timer(stream.get(), arguments);
  CHECK(sources_of(timer, 1) == 1);
  CHECK(sources_of(timer, 3) == 3);
  CHECK(sources_of(timer, 50) == 7);
  TrialTimer without_memory(stream.get(), arguments);
  simt::simulation().fail_allocation = 4;  // the second copy's second argument
  CHECK(sources_of(without_memory, 50) == 2);
}

TEST_CASE("trial: after the time limit the remaining candidates are not tried, but the first always is") {
  SimulatedGpus machine(1);
  Copy baseline, second, third;
  CudaOp* const ops[] = {&baseline, &second, &third};
  int asked = 0;
  const std::vector<TrialResult> results = try_ops(copied(), ops, [&] { return ++asked > 1; });
  CHECK(results[0].verdict == Verdict::fit);
  CHECK(results[1].verdict == Verdict::fit);
  CHECK(results[2].verdict == Verdict::untried);
  CHECK(third.launches == 0);
  const std::vector<TrialResult> none = try_ops(copied(), ops, [] { return true; });
  CHECK(none[0].verdict == Verdict::fit);
  CHECK(none[1].verdict == Verdict::untried);
}
