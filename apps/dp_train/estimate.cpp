#include "estimate.h"

#include <dp/error.h>
#include <algorithm>
#include <cstdio>

namespace dp_train {
namespace {

struct Images {
  dp::Shape shape;
  std::int64_t classes;
};

Images images_of(const std::string& dataset) {
  if (dataset == "cifar10") return {{3, 32, 32}, 10};
  if (dataset == "cifar100") return {{3, 32, 32}, 100};
  if (dataset == "imagefolder") return {{3, 224, 224}, 1000};
  if (dataset == "digits" || dataset == "mnist" || dataset == "fashion_mnist") return {{1, 28, 28}, 10};
  throw dp::Error(dp::ErrorCode::usage, "the images of --dataset '" + dataset +
                                            "' have no fixed shape; estimate with digits, mnist, fashion_mnist, "
                                            "cifar10, cifar100 or imagefolder");
}

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

}  // namespace

void estimate_memory(const Arguments& a, const dp::models::Entry& entry, const std::string& dataset, std::int64_t batch,
                     const dp::DataParallelOptions& options) {
  const Images images = images_of(dataset);
  const dp::Model model = entry.make(images.shape, images.classes);
  const auto replicas = dp::estimate_memory(model, options, {batch}, {std::max<std::int64_t>(batch, 128)});
  std::printf("%s, %s, global batch %lld, MiB on each replica\n", a.model.c_str(), dataset.c_str(),
              static_cast<long long>(batch));
  std::printf("replica   weights gradients   momenta statistics   average activations workspace     other     total\n");
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const dp::MemoryUse& use = replicas[i];
    std::printf("%7zu %9.1f %9.1f %9.1f %10.2f %9.1f %11.1f %9.1f %9.1f %9.1f\n", i, mebibytes(use.weights),
                mebibytes(use.gradients), mebibytes(use.momenta), mebibytes(use.statistics), mebibytes(use.average),
                mebibytes(use.activations), mebibytes(use.workspace), mebibytes(use.other), mebibytes(use.total()));
  }
  const std::size_t free = dp::free_memory(options.devices.front());
  if (free == 0) {
    std::printf("how much memory the devices have is not known\n");
    return;
  }
  // Replicas of one device share its memory; a tenth is left to everybody else.
  const auto sharing = std::count(options.devices.begin(), options.devices.end(), options.devices.front());
  const std::size_t each = free / static_cast<std::size_t>(sharing) / 10 * 9;
  std::printf("largest global batch in %.0f MiB a replica (what is free, less a tenth): %lld\n", mebibytes(each),
              static_cast<long long>(dp::largest_batch(model, options, each)));
}

}  // namespace dp_train
