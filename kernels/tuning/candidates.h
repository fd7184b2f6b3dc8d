// The candidates for an op, among which the tuner chooses, beside the baseline that make() creates.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/cuda/cuda_op.h"

namespace dp::kernels::cuda {

// Families of candidates. DP_CANDIDATES=-warpgroup,-cudnn removes these two.
namespace family {
inline constexpr std::string_view gemm = "gemm", mma = "mma", resident = "resident", warpgroup = "warpgroup",
                                  wgmma = "wgmma", thin = "thin", cudnn = "cudnn", cublaslt = "cublaslt",
                                  unfused = "unfused";
}

struct Candidate {
  std::string_view family;                        // see above
  std::string name;                               // equals implementation() of the op
  std::function<std::unique_ptr<CudaOp>()> make;  // null or Error: not available on this device
};

// Where candidates come from. The file of a kernel adds itself to the candidates of its op by a constant of this type.
class CandidateSource {
 public:
  // untried: our kernels that are used without a trial. own: our other kernels. library: kernels of a library, which
  // needs tens of milliseconds to name them.
  enum class Kind { untried, own, library };
  using Find = std::vector<Candidate> (*)(const OpDesc& desc, const CudaOpOptions& options);

  // families: the families to which its candidates belong.
  CandidateSource(Kind kind, std::initializer_list<std::string_view> families, Find find);
};

// The families that DP_CANDIDATES removes, sorted. Error(usage) if it is malformed or names an unknown family.
std::vector<std::string> removed_families();

// None of these functions returns candidates of removed families. The baseline is not a candidate.
// The order is the same in every run, the most promising first. All ops use the tensors that `baseline` resolved.
std::vector<Candidate> own_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options);
std::vector<Candidate> library_candidates(const OpDesc& desc, const CudaOpOptions& options);
// Own and library candidates.
std::vector<Candidate> other_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options);

// The op to use without trials: the first candidate of kind untried, otherwise `ordinary`, which make() created. In
// trials `ordinary` stays the baseline, with which candidates are compared.
std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options);

}  // namespace dp::kernels::cuda
