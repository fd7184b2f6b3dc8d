// The laws of the floor plan (docs/internals/architecture.md), checked on the text of the sources.
#pragma once

#include <string>
#include <vector>

#include "layering/source_tree.h"

namespace dp::test {

struct Violation {
  std::string where;  // "kernels/cpu/conv/conv.cpp:12"
  std::string what;

  friend bool operator==(const Violation&, const Violation&) = default;
};

// 1: engine/include/dp includes the standard library and itself, and holds headers only.
std::vector<Violation> check_floor(const std::vector<SourceFile>& files);
// 2: models/ and apps/ include <dp/...>, the standard library and the headers beside them; apps/ also CLI11 and POSIX.
std::vector<Violation> check_embedder_view(const std::vector<SourceFile>& files);
// 3: kernels/ and data/ stand on dp/, engine/ stands on both; what they include of ours is named from the root.
std::vector<Violation> check_edges(const std::vector<SourceFile>& files);
// 3: inside engine/, each folder includes only those that it stands on.
std::vector<Violation> check_engine_levels(const std::vector<SourceFile>& files);
// 3: no file includes itself, over whatever detour.
std::vector<Violation> check_cycles(const std::vector<SourceFile>& files);
// 4: CUDA stands in kernels/cuda and tests/simulated_cuda (and a fake driver among the tests); no #if asks for it, but in one header that holds inline PTX.
std::vector<Violation> check_cuda(const std::vector<SourceFile>& files);
// 5: no file is longer than 400 lines.
std::vector<Violation> check_length(const std::vector<SourceFile>& files);
// 5: no folder holds more than 30 source files of its own.
std::vector<Violation> check_rooms(const std::vector<SourceFile>& files);

}  // namespace dp::test
