// Libraries among the ways that are tried: who wins, what is kept, and that a network trains with them.
#include "cuda/library_rig.h"
#include "cuda/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "kernels/cuda/tuner.h"
#include "simt/cublaslt/simulated_cublaslt.h"
#include "simt/cudnn/simulated_cudnn.h"
#include "simt/sleep.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;
using simt::CublasLtAlgorithm;
using simt::CudnnEngine;
using simt::SimulatedCublasLt;
using simt::SimulatedCudnn;
using simt::way_of;

namespace {

TensorDesc last(const Shape& shape) { return {shape, DType::f32, channels_last(shape, DType::f32)}; }
Conv2dForward convolution() {
  return {last({2, 8, 9, 9}), last({40, 8, 3, 3}), last({2, 40, 9, 9}), {3, 1, 1}, true, true};
}

// An own op that takes long, so that what a library does right always wins.
class Slow final : public CudaOp {
 public:
  explicit Slow(std::unique_ptr<CudaOp> op) : op_(std::move(op)) { tensors_ = op_->tensors(); }
  std::size_t workspace_bytes() const override { return op_->workspace_bytes(); }
  std::string implementation() const override { return "pinned"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void* workspace) override {
    simt::sleep_in(stream, 20);
    op_->run_on(stream, args, workspace);
  }

 private:
  std::unique_ptr<CudaOp> op_;
};

// Of it and the ways of libraries.
std::string fastest(Tuner& tuner, const LibraryRig& rig, const OpDesc& desc, const std::string& variant = {}) {
  std::vector<Way> ways;
  auto own = std::visit([&](const auto& d) { return make(d, rig.options); }, desc);
  for (Way& way : ways_beside(desc, *own, rig.options))
    if (!way.name.starts_with("own:")) ways.push_back(std::move(way));
  return tuner.fastest(desc, std::make_unique<Slow>(std::move(own)), ways, variant)->implementation();
}

}  // namespace

TEST_CASE("library ways: a wrong engine never wins, nor one that is slow, fails, is refused or too large") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const SimulatedCudnn cudnn({CudnnEngine::wrong, CudnnEngine::slow, CudnnEngine::fails, CudnnEngine::refuses,
                              CudnnEngine::hungry, CudnnEngine::plain});
  LibraryRig rig;
  Tuner tuner("", "a GPU");
  CHECK(fastest(tuner, rig, convolution()).starts_with(way_of(CudnnEngine::plain) + ", "));
}

TEST_CASE("library ways: where all others are wrong or slow the pinned one stays") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::wrong, CublasLtAlgorithm::slow, CublasLtAlgorithm::fails});
  LibraryRig rig;
  Tuner tuner("", "a GPU");
  const Shape x{3, 20}, w{7, 20}, y{3, 7};
  const LinearForward desc{{x, DType::f32, plain(x, DType::f32)},
                           {w, DType::f32, plain(w, DType::f32)},
                           {y, DType::f32, plain(y, DType::f32)},
                           true,
                           true};
  CHECK(fastest(tuner, rig, desc).starts_with("pinned, "));
  CHECK(!cublaslt.runs().empty());
}

TEST_CASE("library ways: TF32 may win where it is asked for, and is another problem then") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const TemporaryFolder folder;
  const SimulatedCudnn cudnn({CudnnEngine::tensor_core});
  LibraryRig rig;
  Tuner tuner(folder.path(), "a GPU");
  rig.options.tf32 = true;
  // The fallback heuristics have a plain engine, too: either may be the faster one.
  const std::string with = fastest(tuner, rig, convolution(), " tf32");
  CHECK(with.starts_with("cudnn:"));
  rig.options.tf32 = false;
  CHECK(fastest(tuner, rig, convolution()).starts_with(way_of(CudnnEngine::plain) + ", "));
  rig.options.tf32 = true;
  CHECK(fastest(tuner, rig, convolution(), " tf32") == with);
}

TEST_CASE("library ways: what is kept is found again by name, and no other plan is made for it") {
  SimulatedGpus machine(1);
  simt::simulation().delays = false;
  const TemporaryFolder folder;
  std::string chosen;
  {
    const SimulatedCudnn cudnn({CudnnEngine::slow, CudnnEngine::plain});
    LibraryRig rig;
    Tuner tuner(folder.path(), "a GPU");
    chosen = fastest(tuner, rig, convolution());
    CHECK(chosen.starts_with(way_of(CudnnEngine::plain)));
    CHECK(cudnn.plans() == 2);
  }
  const SimulatedCudnn cudnn({CudnnEngine::slow, CudnnEngine::plain});
  LibraryRig rig;
  Tuner tuner(folder.path(), "a GPU");
  CHECK(fastest(tuner, rig, convolution()) == chosen);
  CHECK(cudnn.plans() == 1);
  CHECK(cudnn.runs().empty());
}

TEST_CASE("library ways: replicas train through cuDNN and cuBLASLt as through own kernels, and without them again") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  DataParallelOptions options = on_gpus(2, 2);
  const Batch batch = random_batch(model, 8);
  const auto pinned = step(model, options, batch);
  const auto origin = DataParallel(model, options).weights();
  options.autotune = true;
  {
    const SimulatedCudnn cudnn;
    const SimulatedCublasLt cublaslt;
    const auto tuned = step(model, options, batch);
    const Worst worst = worst_of(tuned, pinned, &origin);
    INFO(worst.name << " " << worst.error);
    CHECK(worst.error <= 1e-4);  // sums in another order
    CHECK(!cudnn.runs().empty());
    CHECK(!cublaslt.runs().empty());
    CHECK(cudnn.handles() == 0);
    CHECK(cublaslt.handles() == 0);
  }
  CHECK(DataParallel(model, options).describe_plan(8).find("cudnn:") == std::string::npos);
}
