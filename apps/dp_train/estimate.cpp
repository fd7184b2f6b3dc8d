#include "estimate.h"

#include <algorithm>
#include <cstdio>

#include "images.h"

namespace dp_train {
namespace {

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

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
