// How a product on tensor cores is divided into blocks. The choice depends only on the shape, like that in
// linear/cuda_gemm_choice.h.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/linear/cuda_gemm_choice.h"

namespace dp::kernels::cuda {

// The first four kinds have 128x128, 256x64, 128x64 and 64x64 results. The others support only some convolutions.
// resident caches cells in shared memory (cuda_mma_resident.h). warpgroup, wgmma_wide (128 columns) and wgmma_narrow
// (64 columns) use wgmma (cuda_warpgroup.h).
enum class MmaTileKind { large, tall, middle, small, resident, warpgroup, wgmma_wide, wgmma_narrow };
inline constexpr MmaTileKind kMmaTileKinds[] = {MmaTileKind::large, MmaTileKind::tall, MmaTileKind::middle,
                                                MmaTileKind::small};  // for every convolution

struct MmaChoice {
  MmaTileKind tile = MmaTileKind::small;
  int splits = 1;  // ranges of k; a second kernel adds their partial sums
};

struct MmaLimits {
  bool splittable = false;  // whether k may be split
  bool resident = false;    // whether a resident kernel fits
  bool warpgroup = false;   // whether the kind warpgroup supports it
  bool wgmma = false;       // whether wgmma_wide or wgmma_narrow supports it
  bool wgmma_first = true;  // whether wgmma is faster than mma.sync
};

// For every tile the best number of splits by the cost model, half of it and twice it. In order of estimated time; at
// least one, at most `most`. The choices with wgmma come before or after them. The first choice is used without trials.
std::vector<MmaChoice> mma_choices(const GemmShape& shape, const MmaLimits& limits, std::size_t most);
const char* to_string(MmaTileKind tile);
std::string_view family_of(MmaTileKind tile);  // in tuning/candidates.h
// Whether `tile` is wgmma_wide or wgmma_narrow.
bool is_wgmma(MmaTileKind tile);

}  // namespace dp::kernels::cuda
