#include "dp/onnx.h"

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/onnx/plugin.h"
#include "kernels/device/plugin_file.h"

namespace dp {
namespace {

const OnnxPlugin& loaded_plugin() {
  static const kernels::PluginFile plugin =
      kernels::load_plugin_file("libdp_onnx.so", "dp_onnx_plugin", "ONNX plugin");
  if (plugin.interface == nullptr)
    throw Error(ErrorCode::usage, "ONNX files cannot be used: " + plugin.reason +
                                      "; it is built where Debian's libonnx-dev and libprotobuf-dev are installed");
  return *static_cast<const OnnxPlugin*>(plugin.interface);
}

}  // namespace

OnnxImport read_onnx(const std::string& path) { return loaded_plugin().read(path); }

void write_onnx(const std::string& path, const TrainedModel& network, const OnnxExport& options) {
  write_file_atomically(path, loaded_plugin().write(network, options));
}

}  // namespace dp
