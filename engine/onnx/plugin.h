// What the ONNX plugin offers. It shares no symbols with the program: no protobuf in libdp.
#pragma once

#include <string>

#include "dp/onnx.h"

namespace dp {

class OnnxPlugin {
 public:
  virtual ~OnnxPlugin() = default;
  virtual OnnxImport read(const std::string& path) const = 0;
  virtual std::string write(const TrainedModel& network, const OnnxExport& options) const = 0;  // the file's bytes
};

}  // namespace dp
