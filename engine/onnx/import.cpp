#include "engine/onnx/import.h"

#include "dp/error.h"

namespace dp {

OnnxImport onnx_import(const std::string&, std::map<std::string, std::string>&) {
  throw Error(ErrorCode::usage, "ONNX files cannot be read yet");
}

}  // namespace dp
