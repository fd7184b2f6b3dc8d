#include <algorithm>

#include "data/threads.h"
#include "dp/dataset.h"
#include "dp/error.h"

namespace dp {

std::shared_ptr<const ImageSet> read_images(const Dataset& dataset, int threads) {
  if (dataset.varies())
    throw Error(ErrorCode::usage, "a dataset that changes its images on each read cannot be stored as bytes");
  const Normalization& normalization = dataset.normalization();
  const Shape shape = dataset.image_shape();
  const auto channels = static_cast<std::size_t>(shape.rank() == 3 ? shape[0] : 0);
  if (channels == 0 || normalization.mean.size() != channels || normalization.std.size() != channels ||
      !std::all_of(normalization.std.begin(), normalization.std.end(), [](float std) { return std > 0; }))
    throw Error(ErrorCode::usage, "images of shape " + to_string(shape) +
                                      " need three dimensions, and a mean and a positive deviation for each channel");
  ImageSet set{Tensor(shape.prepended(dataset.size()), DType::u8), normalization, dataset.augmentation()};
  auto* const bytes = set.images.data<std::uint8_t>();
  const auto image = static_cast<std::size_t>(shape.numel());
  for_ranges(dataset.size(), std::max(threads, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      dataset.read(i, {bytes + static_cast<std::size_t>(i) * image, image}, nullptr);
  });
  return std::make_shared<const ImageSet>(std::move(set));
}

}  // namespace dp
