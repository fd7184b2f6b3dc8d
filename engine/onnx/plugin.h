// What the ONNX plugin offers. It shares no symbols with the program: no protobuf in libdp.
#pragma once

#include <map>
#include <string>

#include "dp/onnx.h"

namespace dp {

class OnnxPlugin {
 public:
  virtual ~OnnxPlugin() = default;
  // `metadata` receives the entries of the file.
  virtual OnnxImport read(const std::string& path, std::map<std::string, std::string>& metadata) const = 0;
  // The file's bytes.
  virtual std::string write(const TrainedModel& network, const OnnxExport& options,
                            const std::map<std::string, std::string>& metadata) const = 0;
};

}  // namespace dp
