// Convolutions fused with parts of a batch normalisation, on simulated GPUs: in plans and in the tuner.
#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "engine/base/test_modes.h"
#include "kernels/device/cuda/context.h"
#include "kernels/fused/cuda_unfused.h"
#include "kernels/tuning/trial.h"
#include "kernels/tuning/tuner.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

std::vector<NamedTensor> trained(const DataParallelOptions& options, NormFusion mode) {
  engine::test_modes().norm_fusion = mode;
  const auto weights = five_steps(narrow_resnet(true), options, 6);
  engine::test_modes().norm_fusion = NormFusion::measured;
  return weights;
}

TensorDesc low(const Shape& shape) { return {shape, DType::bf16, channels_last(shape, DType::bf16)}; }

CudaOpOptions on_device() {
  CudaOpOptions options;
  options.multiprocessors = 2;
  options.compute_capability = 90;
  options.shared_memory = 227 << 10;
  return options;
}

std::vector<OpDesc> fused_ops() {
  const TensorDesc x = low({2, 16, 6, 6}), w = low({24, 16, 3, 3}), y = low({2, 24, 6, 6});
  const TensorDesc dw{w.shape, DType::f32, channels_last(w.shape, DType::f32)};
  std::vector<OpDesc> all{NormConv2dBackwardWeights{x, y, dw, {3, 1, 1}}};
  for (const bool norm : {false, true})
    for (const bool moments : {false, true})
      if (norm || moments) all.emplace_back(NormConv2dForward{x, w, y, {3, 1, 1}, norm, moments});
  for (const bool add : {false, true})
    for (const int relu : {0, 1, 2})
      all.emplace_back(NormConv2dBackwardData{y, w, x, {3, 1, 1}, relu > 0, add, relu > 1});
  return all;
}

// Runs the baseline, then overwrites part of its output with zeros.
class Spoiled final : public CudaOp {
 public:
  Spoiled(std::unique_ptr<CudaOp> op, std::size_t argument, std::size_t byte, std::size_t bytes)
      : op_(std::move(op)), clear_(make(Fill{bytes}, CudaOpOptions{})), argument_(argument), byte_(byte) {
    tensors_ = op_->tensors();
  }
  std::size_t workspace_bytes() const override { return op_->workspace_bytes(); }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    op_->run_on(stream, args, workspace);
    void* const place[] = {static_cast<std::byte*>(args[argument_]) + byte_};
    clear_->run_on(stream, place, nullptr);
  }

 private:
  std::unique_ptr<CudaOp> op_, clear_;
  std::size_t argument_, byte_;
};

std::unique_ptr<CudaOp> baseline_op(const OpDesc& desc) {
  return std::visit([](const auto& d) { return make(d, on_device()); }, desc);
}

}  // namespace

TEST_CASE("simulated GPUs: fused plans train to the same bits") {
  SimulatedGpus machine(2);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::sync})
    for (const Reduce reduce : kReductions) {  // float32: fused ops run unfused; 16 bits: amp_test.cpp
      DataParallelOptions options = on_gpus(2, 2);
      options.batch_norm = mode;
      options.reduce = reduce;
      INFO("batch normalisation " << static_cast<int>(mode) << ", reduce " << static_cast<int>(reduce));
      CHECK(bit_equal(trained(options, NormFusion::always), trained(options, NormFusion::never)));
    }
}

TEST_CASE("tuner: all candidates of fused ops agree, and a wrong statistic is detected") {
  SimulatedGpus machine(1);
  simt::simulation().delays = simt::simulation().protect_memory = false;  // faster
  for (const OpDesc& desc : fused_ops()) {
    const std::vector<TrialArgument> arguments = trial_arguments(desc);
    const auto baseline = baseline_op(desc);
    INFO(problem_of(desc, *baseline));
    std::vector<std::unique_ptr<CudaOp>> all;
    all.push_back(baseline_op(desc));
    const OpDesc convolution = *inner_convolution(desc);
    std::vector<Candidate> inner = own_candidates(convolution, *baseline_op(convolution), on_device());
    for (const Candidate& candidate : inner) {
      all.push_back(unfused(desc, candidate.make(), on_device()));
      CHECK(all.back()->implementation() == unfused_name(candidate.name));
    }
    for (const Candidate& candidate : other_candidates(desc, *baseline, on_device())) {
      all.push_back(candidate.make());
      CHECK(all.back()->implementation() == candidate.name);
    }
    const std::size_t candidates = all.size();
    CHECK(candidates >= 4);
    for (std::size_t i = 0; i < arguments.size(); ++i) {  // the beginning of each piece of its output
      std::size_t element = 0;
      if (!arguments[i].written) continue;
      for (const std::size_t piece :
           arguments[i].pieces.empty() ? std::vector{arguments[i].elements} : arguments[i].pieces) {
        all.push_back(std::make_unique<Spoiled>(baseline_op(desc), i, element * size_of(arguments[i].type),
                                                std::min<std::size_t>(piece * size_of(arguments[i].type), 64)));
        element += piece;
      }
    }
    std::vector<CudaOp*> ops;
    for (const auto& op : all) ops.push_back(op.get());
    const std::vector<TrialResult> results = try_ops(arguments, ops);
    for (std::size_t i = 0; i < results.size(); ++i) {
      INFO((i < candidates ? all[i]->implementation() : "spoiled " + std::to_string(i - candidates)));
      CHECK((results[i].verdict == Verdict::fit) == (i < candidates));
    }
  }
}

TEST_CASE("tuner: the time of a fused op is available only with autotuning") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  ContextOptions options;
  options.autotune = true;
  options.activations = DType::bf16;
  const TensorDesc x = low({2, 16, 6, 6});
  const OpDesc known[] = {BatchNormForward{x, true, false}, fused_ops()[1]}, unknown = ReluForward{x};
  CudaContext trying({DeviceKind::cuda, 0}, options);
  for (const OpDesc& desc : known) {
    const auto seconds = trying.seconds_of(desc);
    REQUIRE(seconds);
    CHECK(*seconds > 0);
    CHECK(trying.seconds_of(desc) == seconds);  // cached
  }
  CHECK(!trying.seconds_of(unknown));
  CHECK(trying.norm_fusion() == NormFusion::measured);
  for (const bool deterministic : {false, true}) {
    options.autotune = deterministic;
    options.deterministic = deterministic;
    CudaContext not_trying({DeviceKind::cuda, 0}, options);
    CHECK(!not_trying.seconds_of(known[0]));
    CHECK(not_trying.norm_fusion() == NormFusion::never);
  }
}
