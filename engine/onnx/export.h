// A network as an ONNX model.
#pragma once

#include <string>

#include "dp/onnx.h"

namespace dp {

std::string onnx_export(const TrainedModel& network, const OnnxExport& options);  // the file's bytes

}  // namespace dp
