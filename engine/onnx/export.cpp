#include "engine/onnx/export.h"

#include "dp/error.h"

namespace dp {

std::string onnx_export(const TrainedModel&, const OnnxExport&) {
  throw Error(ErrorCode::usage, "networks cannot be written as ONNX yet");
}

}  // namespace dp
