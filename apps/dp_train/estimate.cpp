#include "estimate.h"

#include <dp/error.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "images.h"

namespace dp_train {
namespace {

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

// The process on the host, if its data set is there: its size determines the memory of the loader.
void print_process(const Command& command, const dp::Model& model, const dp::TrainerOptions& trainer) {
  std::optional<dp::DatasetPair> data;
  try {
    data = open_images(command, trainer.dataset_name);
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data) throw;
    std::printf("host memory of the process: unknown without the data set (%s)\n", dp::printable(error.what()).c_str());
    return;
  }
  dp::TrainerOptions options = trainer;
  if (options.output_dir.empty()) options.output_dir = "runs";  // as a run, which saves checkpoints
  const dp::HostMemory memory = dp::estimate_host_memory(model, *data, options);
  const bool gpus = trainer.parallel.devices.front().kind == dp::DeviceKind::cuda;
  std::printf("host memory of the process, MiB%s\n", gpus ? ", without the GPU driver's" : "");
  const std::pair<const char*, std::size_t> rows[] = {
      {"program, libraries, data set, plans", memory.process},
      {"code that only steps need", memory.code},
      {"CPU replicas, with short last batches, in whole pages", memory.replicas},
      {"loader, decoding, cached images", memory.loaders},
      {"copies for a checkpoint", memory.copies},
      {"logits for the report", memory.records},
      {"threads", memory.threads},
      {"in all", memory.total()}};
  for (const auto& [name, bytes] : rows) std::printf("%9.1f  %s\n", mebibytes(bytes), name);
}

}  // namespace

void estimate_memory(const Command& command, const dp::models::Entry& entry, const dp::TrainerOptions& trainer) {
  const std::string& dataset = trainer.dataset_name;
  const std::int64_t batch = trainer.batch_size;
  const dp::DataParallelOptions& options = trainer.parallel;
  const ImageFormat images = image_format(command, dataset);
  const dp::Model model = entry.make(images.shape, images.classes);
  const auto replicas =
      dp::estimate_memory(model, options, {batch}, {std::max<std::int64_t>(batch, 128)}, trainer.optimizer);
  const int stages = options.pipeline.stages;
  std::printf("%s, %s, global batch %lld, MiB per %s\n", command.model.c_str(), dataset.c_str(),
              static_cast<long long>(batch), stages > 1 ? "stage of a replica (replica.stage)" : "replica");
  std::printf("replica   weights gradients optimizer statistics   average activations workspace     other     total\n");
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const dp::MemoryUse& use = replicas[i];
    const auto each = static_cast<std::size_t>(stages);
    const std::string name = std::to_string(i / each) + (stages > 1 ? "." + std::to_string(i % each) : "");
    std::printf("%7s %9.1f %9.1f %9.1f %10.2f %9.1f %11.1f %9.1f %9.1f %9.1f\n", name.c_str(), mebibytes(use.weights),
                mebibytes(use.gradients), mebibytes(use.optimizer), mebibytes(use.statistics), mebibytes(use.average),
                mebibytes(use.activations), mebibytes(use.workspace), mebibytes(use.other), mebibytes(use.total()));
  }
  print_process(command, model, trainer);
  const std::size_t free = dp::free_memory(options.devices.front());
  if (free == 0) {
    std::printf("free memory of the devices: unknown\n");
    return;
  }
  // Replicas on one device share its free memory. A tenth stays in reserve.
  const auto sharing = std::count(options.devices.begin(), options.devices.end(), options.devices.front());
  const std::size_t each = free / static_cast<std::size_t>(sharing) / 10 * 9;
  std::printf("largest global batch in %.0f MiB per device (90 %% of the free memory): %lld\n", mebibytes(each),
              static_cast<long long>(dp::largest_batch(model, options, each, trainer.optimizer)));
}

}  // namespace dp_train
