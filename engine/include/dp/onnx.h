// Networks as ONNX files. The code is a plugin, libdp_onnx.so, which is built if ONNX and protobuf are found, and
// loaded when one of these functions is first called. docs/reference/vocabulary.md has the operators of each layer.
#pragma once

#include <string>
#include <vector>

#include "dp/trained_model.h"

namespace dp {

struct OnnxImport {
  TrainedModel network;
  std::vector<std::string> notices;  // what differs from the file, and what it does not say; one line each
};

// Error(data) names the node and its operator if the graph has no equal among the layers, or if the file is damaged.
// Error(usage) if the plugin cannot be loaded.
OnnxImport read_onnx(const std::string& path);

struct OnnxExport {
  bool fold_batch_norm = false;  // into the convolution or linear layer before it
  bool dynamic_batch = false;    // any number of images; false: one image at a time
};

// Writes the network as it evaluates. The input "input" is (N,C,H,W), normalised; the output is "output". Initializers
// have the names of the weights, nodes those of the layers. Class names and preprocessing are metadata
// (docs/reference/formats.md). Atomic. Error(usage) if a layer has no equal in ONNX, if the weights do not fit the
// model, if the file would exceed 2 GiB, or if the plugin cannot be loaded. Error(io) if writing fails.
void write_onnx(const std::string& path, const TrainedModel& network, const OnnxExport& options = {});

}  // namespace dp
