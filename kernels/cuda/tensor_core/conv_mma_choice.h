// How a product on tensor cores is cut into blocks. Depends on its shape alone, as gemm_choice.h's.
#pragma once

#include <vector>

#include "kernels/cuda/gemm/gemm_choice.h"

namespace dp::kernels::cuda {

// 128x128, 256x64, 128x64, 64x64; resident: cells that stay in shared memory (conv_mma_resident.h), for some convolutions.
enum class MmaTileKind { large, tall, middle, small, resident };
inline constexpr MmaTileKind kMmaTileKinds[] = {MmaTileKind::large, MmaTileKind::tall, MmaTileKind::middle,
                                                MmaTileKind::small};  // of all convolutions

struct MmaChoice {
  MmaTileKind tile = MmaTileKind::small;
  int splits = 1;  // ranges of the sum, added up by a second kernel
};

struct MmaLimits {
  bool splittable = false;  // whether the sum may be cut
  bool resident = false;    // whether cells may stay
};

// The likeliest to be fast first: every tile with its best number of splits, and half and twice as many. At least one, at most `most`.
std::vector<MmaChoice> mma_choices(const GemmShape& shape, const MmaLimits& limits, std::size_t most);
const char* to_string(MmaTileKind tile);

}  // namespace dp::kernels::cuda
