// A network as an ONNX model.
#pragma once

#include <map>
#include <string>

#include "dp/onnx.h"

namespace dp {

// The file's bytes. `metadata` is stored as it is.
std::string onnx_export(const TrainedModel& network, const OnnxExport& options,
                        const std::map<std::string, std::string>& metadata);

}  // namespace dp
