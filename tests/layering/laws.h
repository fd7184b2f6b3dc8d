// The layering laws (docs/internals/architecture.md), checked on the source text.
#pragma once

#include <string>
#include <vector>

#include "layering/source_tree.h"

namespace dp::test {

struct Violation {
  std::string where;  // "kernels/conv/cpu.cpp:12"
  std::string what;

  friend bool operator==(const Violation&, const Violation&) = default;
};

// 1: engine/include/dp contains headers only. They include the standard library and each other.
std::vector<Violation> check_floor(const std::vector<SourceFile>& files);
// 2: models/ and apps/ include <dp/...>, the standard library and headers of the same folder. apps/ may also include
// CLI11, toml++ and POSIX.
std::vector<Violation> check_embedder_view(const std::vector<SourceFile>& files);
// 3: kernels/ and data/ may depend on dp/; engine/ may depend on both. Project headers are included by their path from
// the root.
std::vector<Violation> check_edges(const std::vector<SourceFile>& files);
// 3: inside engine/, each folder includes only the folders that it depends on.
std::vector<Violation> check_engine_levels(const std::vector<SourceFile>& files);
// 3: no include cycles.
std::vector<Violation> check_cycles(const std::vector<SourceFile>& files);
// 3: a source includes the standard headers of what it names, itself or by headers of the project: of common names, all
// that libstdc++ does not declare elsewhere. A unity build does not report a missing one.
std::vector<Violation> check_standard_headers(const std::vector<SourceFile>& files);
// 4: CUDA code is in kernels/device/cuda, kernels/tuning, kernels/comm/p2p and nccl, in the files of kernels/ whose
// names begin with "cuda", in tests/simulated_cuda and in the tests' fake driver only. Preprocessor conditionals on
// CUDA are allowed in one header, which has inline PTX.
std::vector<Violation> check_cuda(const std::vector<SourceFile>& files);
// 5: no file has more than 800 lines.
std::vector<Violation> check_length(const std::vector<SourceFile>& files);
// 5: no comment extends beyond column 120. Code may.
std::vector<Violation> check_comments(const std::vector<SourceFile>& files);
// 5: no title of a test begins with a dash (CTest would pass it as an option) or has a semicolon (CMake would split
// it).
std::vector<Violation> check_titles(const std::vector<SourceFile>& files);
// 5: only headers of other libraries are precompiled: ccache would not see that a macro in one of ours has changed.
std::vector<Violation> check_precompiled(const std::vector<SourceFile>& files);
// 5: the member functions of a class that are defined outside of it are in at most two files. Classes of one name count
// as one within a top-level folder. Does not see functions that return a type with parentheses.
std::vector<Violation> check_classes(const std::vector<SourceFile>& files);
// 5: a class declares at most 30 functions of its own: all but those marked `override`. DataParallel is exempt: its
// functions are the calls of its users.
std::vector<Violation> check_width(const std::vector<SourceFile>& files);

}  // namespace dp::test
