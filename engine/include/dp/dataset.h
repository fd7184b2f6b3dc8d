// Labelled images, and where they come from. Images are bytes; the loader augments and normalises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/random.h"
#include "dp/shape.h"
#include "dp/tensor.h"

namespace dp {

// x -> (x/255 - mean) / std, per channel.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> std;
};

// What a loader that augments does to each image it has read, by the image's own random numbers.
struct Augmentation {
  std::int64_t padding = 0;  // black pixels on every side, then a crop of the old size at a random place
  bool flip = false;         // left and right exchanged for every second image, by chance
};

// Labelled images of one shape. Immutable: many loader threads call every method at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;  // number of samples
  virtual Shape image_shape() const = 0;  // (C,H,W)
  virtual std::int64_t classes() const = 0;
  virtual const Normalization& normalization() const = 0;
  virtual std::int32_t label(std::int64_t index) const = 0;  // 0 .. classes-1
  // Writes the C*H*W bytes of an image, plane after plane; out.size() is exactly that. `random` is null, or the stream of
  // this sample in this epoch: a dataset that varies its images while it reads them draws from it, others ignore it.
  virtual void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const = 0;
  virtual Augmentation augmentation() const { return {}; }
  // Whether read() may draw from `random`: then no copy of the bytes can stand for the images, and devices do not keep them.
  virtual bool varies() const { return true; }

  // A copy of one image, not augmented.
  std::vector<std::uint8_t> image(std::int64_t index) const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(image_shape().numel()));
    read(index, bytes, nullptr);
    return bytes;
  }
};

// Every image of a dataset, for devices to keep: batches of it name samples and carry no pixels. Immutable.
struct ImageSet {
  Tensor images;  // (size,C,H,W) uint8
  Normalization normalization;
  Augmentation augmentation;  // of a loader that augments
};
// Read by so many threads. Error(usage) for a dataset that varies, or whose normalisation does not fit its images.
std::shared_ptr<const ImageSet> read_images(const Dataset& dataset, int threads = 1);

struct DatasetPair {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
};

namespace datasets {

// Stroke digits drawn from (seed, index): always there, 28x28, ten classes. Both parts are disjoint.
DatasetPair digits(std::int64_t train = 60000, std::int64_t test = 10000, std::uint64_t seed = 42);

// IDX files, plain or .gz, in `folder`, `folder/raw` or `folder/<Name>/raw`. Sizes, magic numbers and label
// range are checked before anything is allocated from them. Error(data) names path, offset and remedy.
DatasetPair mnist(const std::string& folder);
DatasetPair fashion_mnist(const std::string& folder);

// The binary files of CIFAR, in `folder`, or in `folder/cifar-10-batches-bin` or `folder/cifar-100-binary`, where
// their archives put them. Sizes and labels are checked. CIFAR-100 has its 100 fine labels. Training images are padded
// by 4, cropped and flipped. Error(data) says what is missing and how to get it.
DatasetPair cifar10(const std::string& folder);
DatasetPair cifar100(const std::string& folder);

// JPEG and PNG files as <folder>/train/<class>/<image>, and val/ or test/ in place of train/; classes sorted by name.
// Files are listed now and decoded when they are read, by the loader's threads. Images become side x side as torchvision
// makes them: a random resized crop and a flip for training (augment), a central crop otherwise. Error(data).
DatasetPair image_folder(const std::string& folder, std::int64_t side = 224);

// Random bytes and labels from (seed, index), computed when they are read.
DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed = 42);

// By the name that the command line uses; Error(usage) listing the names for an unknown one.
DatasetPair open(std::string_view name, const std::string& folder, std::uint64_t seed = 42);
const std::vector<std::string>& names();

}  // namespace datasets
}  // namespace dp
