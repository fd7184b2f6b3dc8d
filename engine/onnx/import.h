// An ONNX model as a network.
#pragma once

#include <string>

#include "dp/onnx.h"

namespace dp {

OnnxImport onnx_import(const std::string& path);

}  // namespace dp
