#include "kernels/tuning/candidates.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "dp/error.h"

namespace dp::kernels::cuda {

namespace {

struct Source {
  CandidateSource::Kind kind;
  std::vector<std::string_view> families;
  CandidateSource::Find find;
};
// In the order of kinds.
std::vector<Source>& sources() {
  static std::vector<Source> all;
  return all;
}

void append(std::vector<Candidate>& candidates, CandidateSource::Kind kind, const OpDesc& desc,
            const CudaOpOptions& options) {
  for (const Source& source : sources())
    if (source.kind == kind) std::ranges::move(source.find(desc, options), std::back_inserter(candidates));
}

// Sorted.
std::vector<std::string_view> families() {
  std::vector<std::string_view> all{family::gemm, family::unfused};
  for (const Source& source : sources()) std::ranges::copy(source.families, std::back_inserter(all));
  std::ranges::sort(all);
  return all;
}

[[noreturn]] void refuse(const std::string& text) {
  std::string known;
  for (const std::string_view name : families()) known += std::string(known.empty() ? "" : ", ") + std::string(name);
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

CandidateSource::CandidateSource(Kind kind, std::initializer_list<std::string_view> families, Find find) {
  const auto place = std::ranges::upper_bound(sources(), kind, {}, &Source::kind);
  sources().insert(place, {kind, families, find});
}

std::vector<std::string> removed_families() {
  const char* const given = std::getenv("DP_CANDIDATES");
  if (given == nullptr) return {};
  const std::vector<std::string_view> known = families();
  std::vector<std::string> removed;
  std::istringstream words(given);
  for (std::string word; std::getline(words, word, ',');) {
    if (!word.starts_with('-') || !std::ranges::binary_search(known, std::string_view(word).substr(1))) refuse(given);
    removed.push_back(word.substr(1));
  }
  std::ranges::sort(removed);
  return removed;
}

std::vector<Candidate> own_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates;
  append(candidates, CandidateSource::Kind::untried, desc, options);
  append(candidates, CandidateSource::Kind::own, desc, options);
  for (const GemmChoice& choice : baseline.alternatives()) {
    CudaOpOptions with = options;
    with.gemm = choice;
    candidates.push_back({family::gemm, gemm_name(choice),
                          [desc, with] { return std::visit([&](const auto& d) { return make(d, with); }, desc); }});
  }
  return without_removed(std::move(candidates));
}

std::vector<Candidate> library_candidates(const OpDesc& desc, const CudaOpOptions& options) {
  std::vector<Candidate> candidates;
  append(candidates, CandidateSource::Kind::library, desc, options);
  return without_removed(std::move(candidates));
}

std::vector<Candidate> other_candidates(const OpDesc& desc, const CudaOp& baseline, const CudaOpOptions& options) {
  std::vector<Candidate> candidates = own_candidates(desc, baseline, options);
  std::ranges::move(library_candidates(desc, options), std::back_inserter(candidates));
  return candidates;
}

std::unique_ptr<CudaOp> untried(const OpDesc& desc, std::unique_ptr<CudaOp> ordinary, const CudaOpOptions& options) {
  std::vector<Candidate> candidates;
  append(candidates, CandidateSource::Kind::untried, desc, options);
  candidates = without_removed(std::move(candidates));
  return candidates.empty() ? std::move(ordinary) : candidates.front().make();
}

}  // namespace dp::kernels::cuda
