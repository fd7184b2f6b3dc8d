// An ONNX model as a network.
#pragma once

#include <map>
#include <string>

#include "dp/onnx.h"

namespace dp {

// `metadata` receives the entries of the model.
OnnxImport onnx_import(const std::string& path, std::map<std::string, std::string>& metadata);

}  // namespace dp
