#include <dp/error.h>
#include <dp/onnx.h>
#include <dp/trained_model.h>
#include <cstdio>

#include "subcommands.h"

namespace dp_train {

void export_network(const Export& given) {
  const dp::TrainedModel network = dp::read_trained_model(given.from);
  dp::write_onnx(given.file, network, {.fold_batch_norm = given.fold_bn, .dynamic_batch = given.dynamic_batch});
  std::printf("%s\n", dp::printable(given.file).c_str());
}

}  // namespace dp_train
