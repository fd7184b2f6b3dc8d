#include "dp/onnx.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/onnx/plugin.h"
#include "kernels/device/plugin_file.h"

namespace dp {
namespace {

const OnnxPlugin& loaded_plugin() {
  static const kernels::PluginFile plugin = kernels::load_plugin_file("libdp_onnx.so", "dp_onnx_plugin", "ONNX plugin");
  if (plugin.interface == nullptr)
    throw Error(ErrorCode::usage, "ONNX files cannot be used: " + plugin.reason +
                                      "; it is built where Debian's libonnx-dev and libprotobuf-dev are installed");
  return *static_cast<const OnnxPlugin*>(plugin.interface);
}

}  // namespace

OnnxImport read_onnx(const std::string& path) {
  std::map<std::string, std::string> metadata;
  OnnxImport imported = loaded_plugin().read(path, metadata);
  TrainedModel& network = imported.network;
  network.classes = classes_in(metadata, path);
  network.preprocessing = preprocessing_in(metadata, path);
  const std::int64_t outputs = network.model.output().numel(), channels = network.model.input()[0];
  if (!network.classes.empty() && static_cast<std::int64_t>(network.classes.size()) != outputs)
    throw_data(path, fmt::format("names {} classes, but the network has {} outputs", network.classes.size(), outputs));
  if (network.preprocessing && static_cast<std::int64_t>(network.preprocessing->normalization.mean.size()) != channels)
    throw_data(path, "normalises another number of channels than the network has");
  return imported;
}

void write_onnx(const std::string& path, const TrainedModel& network, const OnnxExport& options) {
  const OnnxPlugin& plugin = loaded_plugin();
  std::map<std::string, std::string> metadata = metadata_of(std::nullopt, network.classes, network.preprocessing);
  metadata.erase("format");  // of safetensors
  const auto sizes = network.model.input().dims();
  metadata["dp.input_size"] = fmt::format("[{}]", fmt::join(sizes, ","));
  write_file_atomically(path, plugin.write(network, options, metadata));
}

}  // namespace dp
