// Environment variables for dp_train on four simulated GPUs.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace dp::test {

inline std::vector<std::string> simulated(const TemporaryFolder& temp, const std::string& peers = "all") {
  const char* const libraries = std::getenv("LD_LIBRARY_PATH");  // oneDNN may be installed there
  return {"LD_LIBRARY_PATH=" DP_SIMULATED_FOLDER + (libraries ? ":" + std::string(libraries) : std::string()),
          "DP_PLUGIN_PATH=" DP_SIMULATED_FOLDER,
          "DP_NCCL_LIBRARY=/nonexistent",
          "DP_CUDNN_LIBRARY=/nonexistent",
          "DP_CUBLASLT_LIBRARY=/nonexistent",
          "DP_SIMULATED_GPUS=4",
          "DP_SIMULATED_PEERS=" + peers,
          "XDG_CACHE_HOME=" + temp.path()};
}

}  // namespace dp::test
