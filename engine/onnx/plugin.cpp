// The ONNX plugin. It exports one function, dp_onnx_plugin().
#include "engine/onnx/plugin.h"

#include <cstring>

#include "engine/onnx/export.h"
#include "engine/onnx/import.h"

namespace dp {
namespace {

class Plugin final : public OnnxPlugin {
 public:
  OnnxImport read(const std::string& path, std::map<std::string, std::string>& metadata) const override {
    return onnx_import(path, metadata);
  }
  std::string write(const TrainedModel& network, const OnnxExport& options,
                    const std::map<std::string, std::string>& metadata) const override {
    return onnx_export(network, options, metadata);
  }
};

}  // namespace
}  // namespace dp

extern "C" __attribute__((visibility("default"))) void* dp_onnx_plugin(const char* abi, const char** own_abi) {
  static dp::Plugin plugin;
  *own_abi = DP_ABI_HASH;
  return std::strcmp(abi, DP_ABI_HASH) == 0 ? static_cast<dp::OnnxPlugin*>(&plugin) : nullptr;
}
