#include "kernels/tuning/candidates.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "dp/error.h"
#include "kernels/conv/cuda_cudnn.h"
#include "kernels/conv/cuda_mma.h"
#include "kernels/conv/cuda_mma_thin.h"
#include "kernels/fused/cuda_fused_op.h"
#include "kernels/fused/fused_steps.h"
#include "kernels/linear/cuda_cublaslt.h"

namespace dp::kernels::cuda {

namespace {

void append(std::vector<Candidate>& candidates, std::vector<Candidate> more) {
  std::ranges::move(more, std::back_inserter(candidates));
}

constexpr std::string_view kFamilies[] = {family::gemm,      family::mma,      family::resident,
                                          family::warpgroup, family::wgmma,    family::thin,
                                          family::cudnn,     family::cublaslt, family::unfused};

[[noreturn]] void refuse(const std::string& text) {
  std::string known;
  for (const std::string_view name : kFamilies) known += std::string(known.empty() ? "" : ", ") + std::string(name);
  throw Error(ErrorCode::usage, "DP_CANDIDATES is '" + text +
                                    "'; list families to remove, such as -warpgroup,-cudnn; the families are " + known);
}

std::vector<Candidate> without_removed(std::vector<Candidate> candidates) {
  const std::vector<std::string> removed = removed_families();
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return std::ranges::find(removed, candidate.family) != removed.end();
  });
  return candidates;
}

}  // namespace

std::vector<std::string> removed_families() {
  const char* const given = std::getenv("DP_CANDIDATES");
  if (given == nullptr) return {};
  std::vector<std::string> removed;
  std::istringstream words(given);
  for (std::string word; std::getline(words, word, ',');) {
    if (!word.starts_with('-') || std::ranges::find(kFamilies, word.substr(1)) == std::end(kFamilies)) refuse(given);
    removed.push_back(word.substr(1));
  }
  std::ranges::sort(removed);
  return removed;
}

std::vector<Candidate> own_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = mma_candidates(desc, options);
  append(candidates, thin_mma_candidates(desc, options));
  for (const GemmChoice& choice : baseline.alternatives()) {
    CudaOpOptions with = options;
    with.gemm = choice;
    candidates.push_back({family::gemm, gemm_name(choice),
                          [desc, with] { return std::visit([&](const auto& d) { return make(d, with); }, desc); }});
  }
  return without_removed(std::move(candidates));
}

std::vector<Candidate> library_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = cudnn_candidates(desc, options);
  append(candidates, cublaslt_candidates(desc, options));
  return without_removed(std::move(candidates));
}

std::vector<Candidate> other_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = own_candidates(desc, baseline, options);
  append(candidates, library_candidates(desc, options));
  return candidates;
}

std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options) {
  const std::vector<Candidate> candidates = without_removed(mma_candidates(desc, options));
  return candidates.empty() ? std::move(ordinary) : candidates.front().make();
}

}  // namespace dp::kernels::cuda
