// An ONNX model as a network.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "dp/onnx.h"

namespace dp {

// Reads a file of at most 2 GiB, and the files beside it that hold its weights. `metadata` receives the entries of the
// model. Error(data) begins with the path.
OnnxImport onnx_import(const std::string& path, std::map<std::string, std::string>& metadata);

// The same for the bytes of a file, whose weights are all inside. Error(data) without a path.
OnnxImport onnx_import_bytes(std::string_view bytes, std::map<std::string, std::string>& metadata);

}  // namespace dp
