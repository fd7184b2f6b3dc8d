// DP_CANDIDATES removes families of candidates, and choices made with and without a family are kept apart.
#include "kernels/tuning/candidates.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "cuda/last.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/device/cuda/context.h"
#include "kernels/device/cuda/cuda_backend.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

class Removed {
 public:
  explicit Removed(const std::string& families) { ::setenv("DP_CANDIDATES", families.c_str(), 1); }
  ~Removed() { ::unsetenv("DP_CANDIDATES"); }
  Removed(const Removed&) = delete;
  Removed& operator=(const Removed&) = delete;
};

Conv2dForward convolution() {
  const TensorDesc x = last({64, 64, 32, 32}, DType::bf16);
  return {x, last({64, 64, 3, 3}, DType::bf16), x, {3, 1, 1}, false, false};
}

const CudaOpOptions kHopper{
    .multiprocessors = 132, .compute_capability = 90, .wgmma = true, .shared_memory = 227 * 1024};

std::set<std::string_view> offered() {
  std::set<std::string_view> families;
  for (const Candidate& candidate : own_candidates(convolution(), *make(convolution(), kHopper), kHopper))
    families.insert(candidate.family);
  return families;
}

}  // namespace

TEST_CASE("candidates: DP_CANDIDATES removes families, also from the choice without trials") {
  using namespace family;
  CHECK(offered() == std::set{gemm, mma, resident, warpgroup, wgmma});
  const std::string first = mma_candidates(convolution(), kHopper).front().name;
  CHECK(untried(convolution(), make(convolution(), kHopper), kHopper)->implementation() == first);
  {
    const Removed removed("-wgmma,-warpgroup");
    CHECK(offered() == std::set{gemm, mma, resident});
    CHECK(removed_families() == std::vector<std::string>{"warpgroup", "wgmma"});
    const auto op = untried(convolution(), make(convolution(), kHopper), kHopper);
    CHECK(op->implementation() != first);
    CHECK(op->implementation().starts_with("own:mma resident"));
  }
  const Removed removed("-gemm,-mma,-resident,-warpgroup,-wgmma");
  CHECK(offered().empty());
  const std::string baseline = make(convolution(), kHopper)->implementation();
  CHECK(untried(convolution(), make(convolution(), kHopper), kHopper)->implementation() == baseline);
}

TEST_CASE("candidates: DP_CANDIDATES that names no family, or has no minus, is refused") {
  for (const char* const wrong : {"wgmma", "-wgmma,mma", "-wgmm", "-", "-wgmma,,-mma"}) {
    const Removed removed(wrong);
    try {
      offered();
      FAIL(wrong);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK_THAT(error.what(),
                 Catch::Contains(std::string("DP_CANDIDATES is '") + wrong + "'") &&
                     Catch::Contains("cublaslt, cudnn, gemm, mma, resident, thin, unfused, warpgroup, wgmma"));
    }
  }
  const Removed removed("");
  CHECK(removed_families().empty());
}

TEST_CASE("candidates: a choice made without a family is another problem for the tuner") {
  SimulatedGpus machine(1);
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  ::setenv("DP_TUNING_LOG", log.c_str(), 1);
  const auto context = cuda_backend().open({DeviceKind::cuda, 0}, {.autotune = true});
  const TensorDesc x = last({2, 8, 9, 9}), w = last({40, 8, 3, 3}), y = last({2, 40, 9, 9});
  const auto trials_of = [&] {  // lines that making the op adds to the log
    const auto lines = [&] {
      const std::string text = std::filesystem::exists(log) ? read_text(log) : "";
      return std::ranges::count(text, '\n');
    };
    const auto before = lines();
    CHECK(context->make_op(Conv2dForward{x, w, y, {3, 1, 1}, true, false})->implementation().ends_with(" us"));
    return lines() - before;
  };
  const auto all = trials_of();
  CHECK(all > 1);
  CHECK(trials_of() == 0);  // known
  {
    const Removed removed("-cudnn");
    CHECK(trials_of() == all);
    CHECK(trials_of() == 0);
    const Removed more("-gemm");
    CHECK(trials_of() == 1);  // the baseline alone
  }
  CHECK(trials_of() == 0);
  ::unsetenv("DP_TUNING_LOG");
}

TEST_CASE("candidates: wgmma needs machine code for 9.0a, so a driver that is told to compile PTX offers none") {
  SimulatedGpus machine(1);
  CHECK(options_of_device(0).wgmma == (options_of_device(0).compute_capability == 90));
  ::setenv("CUDA_FORCE_PTX_JIT", "1", 1);
  CHECK(!options_of_device(0).wgmma);
  ::setenv("CUDA_FORCE_PTX_JIT", "0", 1);
  CHECK(options_of_device(0).wgmma == (options_of_device(0).compute_capability == 90));
  ::unsetenv("CUDA_FORCE_PTX_JIT");
}
