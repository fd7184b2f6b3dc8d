// Sorts the trial results of one problem's candidates into notes and failures.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/tuning/trial.h"

namespace dp::test {

struct Judged {
  std::vector<std::string> failures;
  std::vector<std::string> notes;  // expected for libraries: the tuner rejects these candidates
};

// cuDNN's fused ReLU and cuBLASLt's RELU_BIAS write 0 for NaN; our kernels must not. At least one candidate must fit;
// it may be the baseline.
inline Judged judged(std::span<kernels::cuda::CudaOp* const> ops, std::span<const kernels::cuda::TrialResult> results) {
  using kernels::cuda::Verdict;
  Judged found;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const std::string name = ops[i]->implementation(), note = note_of(results[i]);
    const bool library = name.find("cudnn:") != std::string::npos || name.find("cublaslt:") != std::string::npos;
    const bool expected = results[i].verdict == Verdict::fit || (library && results[i].verdict == Verdict::loses_nan);
    if (!note.empty()) (expected ? found.notes : found.failures).push_back(name + " " + note);
  }
  if (std::ranges::count(results, Verdict::fit, &kernels::cuda::TrialResult::verdict) == 0)
    found.failures.push_back("no candidate is fit");
  return found;
}

}  // namespace dp::test
