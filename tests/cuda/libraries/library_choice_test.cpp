// Library candidates in the tuner: which one is chosen, what is cached, and that a network trains with them.
#include "cuda/last.h"
#include "cuda/libraries/library_rig.h"

#include <set>
#include <utility>

#include "cuda/engine/narrow_nets.h"
#include "cuda/libraries/judged_candidates.h"
#include "cuda/simulated_gpus.h"
#include "kernels/conv/cuda_cudnn.h"
#include "kernels/device/cuda/context.h"
#include "kernels/linear/cuda_cublaslt.h"
#include "kernels/tuning/tuner.h"
#include "kernels/tuning/tuning_cache.h"
#include "simulated_cuda/cublaslt/simulated_cublaslt.h"
#include "simulated_cuda/cudnn/simulated_cudnn.h"
#include "simulated_cuda/runtime/devices.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;
using simt::candidate_of;
using simt::CublasLtAlgorithm;
using simt::CudnnEngine;
using simt::SimulatedCublasLt;
using simt::SimulatedCudnn;

namespace {

Conv2dForward convolution(bool relu = true) {
  return {last({2, 8, 9, 9}), last({40, 8, 3, 3}), last({2, 40, 9, 9}), {3, 1, 1}, true, relu};
}
LinearForward linear(bool relu = true) {
  const Shape x{3, 20}, w{7, 20}, y{3, 7};
  return {{x, DType::f32, plain(x, DType::f32)},
          {w, DType::f32, plain(w, DType::f32)},
          {y, DType::f32, plain(y, DType::f32)},
          true,
          relu};
}

// Makes the trials, but replaces the measured times, which depend on what else the machine does: the slow engines are
// slower than our own op, all others faster.
class TimedByName final : public Tuner {
 public:
  using Tuner::Tuner;

 private:
  inline static const std::string kSlowAlgorithm =
      "cublaslt:" + std::to_string(static_cast<int>(CublasLtAlgorithm::slow)) + " ";

  std::vector<TrialResult> try_all(const OpDesc& desc, std::span<CudaOp* const> ops,
                                   const std::function<bool()>& out_of_time) override {
    std::vector<TrialResult> results = Tuner::try_all(desc, ops, out_of_time);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].verdict != Verdict::fit) continue;
      const std::string name = ops[i]->implementation();
      const bool slow = name.starts_with(candidate_of(CudnnEngine::slow)) || name.starts_with(kSlowAlgorithm);
      results[i].microseconds = i == 0 ? 10 : slow ? 100 : 1;
    }
    return results;
  }
};

// The fastest of our own op and the library candidates.
std::string fastest(Tuner& tuner, const LibraryRig& rig, const OpDesc& desc, const std::string& variant = {}) {
  std::vector<Candidate> candidates;
  auto own = std::visit([&](const auto& d) { return make(d, rig.options); }, desc);
  for (Candidate& candidate : other_candidates(desc, *own, rig.options))
    if (!candidate.name.starts_with("own:")) candidates.push_back(std::move(candidate));
  return as_op(tuner.choose(desc, std::move(own), {candidates, {}, {}}, variant))->implementation();
}

}  // namespace

TEST_CASE("library candidates: a wrong, slow, failing, refused or oversized engine is never selected") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const SimulatedCudnn cudnn({CudnnEngine::wrong, CudnnEngine::slow, CudnnEngine::fails, CudnnEngine::refuses,
                              CudnnEngine::hungry, CudnnEngine::plain});
  LibraryRig rig;
  TimedByName tuner("", "a GPU");
  CHECK(fastest(tuner, rig, convolution()).starts_with(candidate_of(CudnnEngine::plain) + ", "));
}

TEST_CASE("library candidates: the baseline is selected if all others are wrong or slow") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::wrong, CublasLtAlgorithm::slow, CublasLtAlgorithm::fails});
  LibraryRig rig;
  TimedByName tuner("", "a GPU");
  CHECK(fastest(tuner, rig, linear()).starts_with("own:"));
  CHECK(!cublaslt.runs().empty());
}

TEST_CASE("library candidates: an engine whose ReLU turns NaN into 0 is rejected, because it would hide a broken run") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const SimulatedCudnn cudnn({CudnnEngine::loses_nan});
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::loses_nan});
  LibraryRig rig;
  TimedByName tuner("", "a GPU");
  for (const bool relu : {true, false}) {
    INFO("ReLU " << relu);
    // cuDNN's fallback heuristics also return a plain engine.
    const std::string convolved = fastest(tuner, rig, convolution(relu));
    CHECK(convolved.starts_with("cudnn:"));
    if (relu) CHECK(!convolved.starts_with(candidate_of(CudnnEngine::loses_nan)));
    CHECK(fastest(tuner, rig, linear(relu)).starts_with("cublaslt:") == !relu);
  }
}

TEST_CASE("library candidates: a library engine that loses NaN is a note, and an own kernel that does is a failure") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::loses_nan, CudnnEngine::wrong, CudnnEngine::plain});
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::loses_nan});
  LibraryRig rig;
  const auto found = [&](const OpDesc& desc) {
    std::vector<std::unique_ptr<CudaOp>> all;
    all.push_back(std::visit([&](const auto& d) { return make(d, rig.options); }, desc));
    for (const Candidate& candidate : library_candidates(desc, rig.options)) all.push_back(candidate.make());
    std::vector<CudaOp*> ops;
    for (const auto& op : all) ops.push_back(op.get());
    return judged(ops, try_ops(trial_arguments(desc), ops));
  };
  using Lines = std::vector<std::string>;
  const Judged convolved = found(convolution());
  CHECK(convolved.notes == Lines{candidate_of(CudnnEngine::loses_nan) + " loses NaN"});
  CHECK(convolved.failures == Lines{candidate_of(CudnnEngine::wrong) + " differs from the baseline"});
  const Judged multiplied = found(linear());  // the library's only candidate; our own kernel is correct
  CHECK(multiplied.notes.size() == 1);
  CHECK(multiplied.failures.empty());
  const auto own = make(convolution(), rig.options);
  CudaOp* const ops[] = {own.get(), own.get()};
  const std::string name = own->implementation();
  CHECK(judged(ops, std::vector<TrialResult>{{Verdict::fit, 1}, {Verdict::loses_nan}}).failures ==
        Lines{name + " loses NaN"});
  CHECK(judged(ops, std::vector<TrialResult>(2)).failures ==
        Lines{name + " not tried", name + " not tried", "no candidate is fit"});
}

TEST_CASE("library candidates: at most two cuDNN engines that compile kernels are tried per problem") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn(
      {CudnnEngine::compiles, CudnnEngine::compiles_too, CudnnEngine::compiles_as_well, CudnnEngine::plain});
  LibraryRig rig;
  std::vector<std::string> names;
  for (const Candidate& candidate : cudnn_candidates(convolution(), rig.options)) names.push_back(candidate.name);
  CHECK(names == std::vector{candidate_of(CudnnEngine::compiles), candidate_of(CudnnEngine::compiles_too),
                             candidate_of(CudnnEngine::plain)});
}

TEST_CASE("library candidates: cached choices are bound to the versions of the libraries") {
  SimulatedGpus machine(1);
  std::set<std::string> machines{machine_of(0)};
  {
    const SimulatedCudnn cudnn({CudnnEngine::plain});
    machines.insert(machine_of(0));
    const SimulatedCublasLt cublaslt({CublasLtAlgorithm::plain});
    machines.insert(machine_of(0));
  }
  CHECK(machines.size() == 3);
  simt::simulation().compute_capability = 86;
  machines.insert(machine_of(0));
  CHECK(machines.size() == 4);
}

TEST_CASE("library candidates: TF32 engines may be selected on request, under a problem of their own") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const TemporaryFolder folder;
  const SimulatedCudnn cudnn({CudnnEngine::tensor_core});
  LibraryRig rig;
  TimedByName tuner(folder.path(), "a GPU");
  rig.options.tf32 = true;
  // The fallback heuristics also return a plain engine. Either one may be the faster one.
  const std::string with = fastest(tuner, rig, convolution(), " tf32");
  CHECK(with.starts_with("cudnn:"));
  rig.options.tf32 = false;
  CHECK(fastest(tuner, rig, convolution()).starts_with(candidate_of(CudnnEngine::plain) + ", "));
  rig.options.tf32 = true;
  CHECK(fastest(tuner, rig, convolution(), " tf32") == with);
}

TEST_CASE("library candidates: a cached choice is found by name without making another plan") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const TemporaryFolder folder;
  std::string chosen;
  {
    const SimulatedCudnn cudnn({CudnnEngine::slow, CudnnEngine::plain});
    LibraryRig rig;
    TimedByName tuner(folder.path(), "a GPU");
    chosen = fastest(tuner, rig, convolution());
    CHECK(chosen.starts_with(candidate_of(CudnnEngine::plain)));
    CHECK(cudnn.plans() == 2);
  }
  const SimulatedCudnn cudnn({CudnnEngine::slow, CudnnEngine::plain});
  LibraryRig rig;
  TimedByName tuner(folder.path(), "a GPU");
  CHECK(fastest(tuner, rig, convolution()) == chosen);
  CHECK(cudnn.plans() == 1);
  CHECK(cudnn.runs().empty());
}

TEST_CASE("library candidates: replicas train with cuDNN and cuBLASLt as with own kernels, and again without them") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const Batch batch = random_batch(model, 8);
  const auto baseline = step(model, options, batch);
  const auto origin = DataParallel(model, options).weights();
  options.autotune = true;
  {
    const SimulatedCudnn cudnn;
    const SimulatedCublasLt cublaslt;
    const auto tuned = step(model, options, batch);
    const Worst worst = worst_of(tuned, baseline, &origin);
    INFO(worst.name << " " << worst.error);
    CHECK(worst.error <= 1e-4);  // another order of additions
    CHECK(!cudnn.runs().empty());
    CHECK(!cublaslt.runs().empty());
    CHECK(cudnn.handles() == 0);
    CHECK(cublaslt.handles() == 0);
  }
  CHECK(DataParallel(model, options).describe_plan(8).find("cudnn:") == std::string::npos);
}

TEST_CASE("library candidates: a graph runs candidates as recorded, and the capture changes no library state") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  SimulatedCudnn cudnn({CudnnEngine::needs_workspace});
  cudnn.refuse_wide_weight_gradients();  // our own kernel is used for them
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::needs_workspace});
  LibraryRig rig;
  Random random(3, RandomUse::synthetic);
  const auto desc = [](const Shape& shape, DType type) { return TensorDesc{shape, type, channels_last(shape, type)}; };
  const TensorDesc x = desc({2, 8, 6, 6}, DType::bf16), dy = desc({2, 12, 6, 6}, DType::bf16),
                   dw = desc({12, 8, 3, 3}, DType::f32), rows = desc({3, 20}, DType::f32),
                   w = desc({7, 20}, DType::f32), y = desc({3, 7}, DType::f32), b = desc({7}, DType::f32);
  const auto convolution =
      cudnn_candidates(Conv2dBackwardWeights{x, dy, dw, {3, 1, 1}, false}, rig.options).front().make();
  const auto linear = cublaslt_candidates(LinearForward{rows, w, y, true, true}, rig.options).front().make();
  const auto any = [&](const TensorDesc& tensor) { return rig.upload(random_tensor(tensor.shape, random), tensor); };
  const DeviceTensor at_x = any(x), at_dy = any(dy), at_rows = any(rows), at_w = any(w), at_b = any(b),
                     at_dw = rig.poisoned(dw), at_y = rig.poisoned(y);
  const auto workspace =
      rig.rig().context().allocate(std::max(convolution->workspace_bytes(), linear->workspace_bytes()));
  const auto stream = rig.rig().context().make_stream();
  const auto run = [&] {
    void* const of_convolution[] = {at_x.data(), at_dy.data(), at_dw.data(), nullptr};
    void* const of_linear[] = {at_rows.data(), at_w.data(), at_b.data(), at_y.data()};
    convolution->run(*stream, of_convolution, workspace->data());
    linear->run(*stream, of_linear, workspace->data());
  };
  run();
  stream->synchronize();
  const HostTensor gradient = rig.download(at_dw), result = rig.download(at_y);
  const int packs = cudnn.variant_packs();
  rig.rig().context().begin_graph(stream.get());
  run();
  const auto graph = rig.rig().context().end_graph(stream.get());
  CHECK(cudnn.variant_packs() == packs);
  for (int i = 0; i < 2; ++i) {
    const HostTensor none = zeros(dw.shape);
    const DeviceTensor cleared = rig.upload(none, dw), empty = rig.upload(zeros(y.shape), y);
    stream->copy(at_dw.data(), cleared.data(), dw.layout.bytes);
    stream->copy(at_y.data(), empty.data(), y.layout.bytes);
    graph->launch(*stream);
    stream->synchronize();
    CHECK(rig.download(at_dw).values == gradient.values);
    CHECK(rig.download(at_y).values == result.values);
  }
}

TEST_CASE("library candidates: a cached choice runs once on each device when its op is made") {
  SimulatedGpus machine(2);
  simt::simulation().delays = false;
  simt::simulation().compute_capability = 87;  // a machine without earlier choices in this process
  const SimulatedCudnn cudnn({CudnnEngine::plain});
  const OpDesc desc = convolution();
  const auto own = make(convolution(), options_of_device(0));
  for (const int device : {0, 1})  // the simulated GPUs have different names
    TuningCache(cache_folder(), machine_of(device))
        .keep(problem_of(desc, *own), {candidate_of(CudnnEngine::plain), 5.0});
  ContextOptions options;
  options.autotune = true;
  for (const int device : {0, 1}) {
    const auto context = backend(DeviceKind::cuda).open({DeviceKind::cuda, device}, options);
    const std::string chosen = context->make_op(desc)->implementation();
    INFO(chosen);
    CHECK(chosen.starts_with(candidate_of(CudnnEngine::plain)));
    CHECK(cudnn.runs().size() == static_cast<std::size_t>(device + 1));
  }
}

// No memory is bound yet, and a library rejects null pointers.
TEST_CASE("library candidates: a plan is described before the first step") {
  SimulatedGpus machine(1);
  simt::simulation().compute_capability = 86;  // as above
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::plain});
  const Shape x{8, 1, 8, 8}, w{128, 64}, y{8, 128};
  const LinearForward fc1{{x, DType::f32, plain(x, DType::f32)}, {w, DType::f32, {}}, {y, DType::f32, {}}, true, true};
  std::string candidate;
  {
    LibraryRig rig;
    const auto own = make(fc1, rig.options);
    for (const Candidate& one : other_candidates(fc1, *own, rig.options))
      if (one.name.starts_with("cublaslt")) candidate = one.name;
    // " fast": replicas allow fast convolutions by default, which is part of the key.
    TuningCache(cache_folder(), machine_of(0)).keep(problem_of(fc1, *own) + " fast", {candidate, 5.0});
  }
  REQUIRE(!candidate.empty());
  DataParallelOptions options = on_gpus(1, 1);
  options.autotune = true;
  const std::string plan = DataParallel(models::mlp({.input = {1, 8, 8}, .classes = 10}), options).describe_plan(8);
  INFO(plan);
  CHECK(plan.find("fc1+relu                                 " + candidate + ", 5.0 us") != std::string::npos);
}

namespace {

CudnnApi observed_cudnn;
CublasLtApi observed_cublaslt;
decltype(CudnnApi::destroy) destroy_cudnn;
decltype(CublasLtApi::destroy) destroy_cublaslt;
std::vector<int> current_at_end;  // the current device at each destruction of a handle

void note_device() { current_at_end.push_back(simt::current_device()); }

}  // namespace

TEST_CASE("library candidates: handles are destroyed while their own device is current") {
  SimulatedGpus machine(3);
  const SimulatedCudnn cudnn({CudnnEngine::plain});
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::plain});
  observed_cudnn = *kernels::cuda::cudnn().api, observed_cublaslt = *kernels::cuda::cublaslt().api;
  destroy_cudnn = std::exchange(observed_cudnn.destroy, [](CudnnHandle handle) {
    note_device();
    return destroy_cudnn(handle);
  });
  destroy_cublaslt = std::exchange(observed_cublaslt.destroy, [](CublasLtHandle handle) {
    note_device();
    return destroy_cublaslt(handle);
  });
  provide_cudnn({&observed_cudnn, "observed", {}});
  provide_cublaslt({&observed_cublaslt, "observed", {}});
  current_at_end.clear();
  {
    Libraries one(1), two(2);
    for (Libraries* const libraries : {&one, &two}) {
      bind_device(libraries == &one ? 1 : 2);
      CHECK(libraries->cudnn_handle() != nullptr);
      CHECK(libraries->cublaslt_handle() != nullptr);
    }
    bind_device(0);
  }
  CHECK(current_at_end == std::vector<int>{2, 2, 1, 1});
}
