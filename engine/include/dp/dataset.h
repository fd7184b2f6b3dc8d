// Labelled images and the built-in data sets. Images are bytes; the loader augments and normalises them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dp/augmentation.h"
#include "dp/random.h"
#include "dp/shape.h"
#include "dp/tensor.h"

namespace dp {

// x -> (x/255 - mean) / std, per channel.
struct Normalization {
  std::vector<float> mean;
  std::vector<float> std;
};

// How image files become images of side x side: for training a random resized crop, otherwise a central crop. With the
// bits of Pillow's resize() up to its version 12, which torchvision's transforms call for images of Pillow.
struct Resizing {
  Interpolation interpolation = Interpolation::bilinear;  // bilinear and bicubic are antialiased
  // As timm's: the shorter side becomes side / crop_pct, rounded down, before the crop. 0.05 to 1.
  double crop_pct = 0.875;
};

// How an evaluation makes the input of a network from an image.
struct Preprocessing {
  Normalization normalization;
  std::optional<Resizing> resizing{};  // empty: the images of the data set already have the size of the input
};

// Labelled images of one shape. Immutable: loader threads call every method concurrently.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;                               // number of samples
  virtual Shape image_shape() const = 0;                               // (C,H,W)
  virtual std::int64_t classes() const = 0;                            // or the number of targets of a sample
  virtual std::vector<std::string> class_names() const { return {}; }  // of every class, or none
  virtual const Normalization& normalization() const = 0;
  virtual std::optional<Resizing> resizing() const { return {}; }  // of image files
  virtual std::int32_t label(std::int64_t index) const = 0;        // 0 .. classes-1; with targets 0
  // Whether samples have targets instead of class numbers, for DataParallelOptions::output_loss; and the targets of a
  // sample: out.size() is classes().
  virtual bool has_targets() const { return false; }
  virtual void targets(std::int64_t /*index*/, std::span<float> /*out*/) const {}
  // Whether samples have weights, for TargetOptions::sample_weights; and that of a sample, at least 0.
  virtual bool has_weights() const { return false; }
  virtual float weight(std::int64_t /*index*/) const { return 1; }
  // Writes the C*H*W bytes of an image, plane after plane; out.size() is C*H*W. `random` is null, or the random stream
  // of this sample in this epoch. Only a data set that varies its images while reading draws from it.
  virtual void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const = 0;
  // What the loader does with training images.
  virtual Augmentation augmentation() const { return {}; }
  // Whether read() may draw from `random`. If so, the data set cannot be device-resident.
  virtual bool varies() const { return true; }
  // What identifies a sample besides its class, for the fingerprint in checkpoints: a file's path in the data set and
  // its size, for example. A resumed run whose fingerprint differs is announced. Empty: only the class counts.
  virtual std::string sample_id(std::int64_t) const { return {}; }
  // Files in the data set's folders that are not images: each file ending (".gif"), and how many files have it.
  virtual std::vector<std::pair<std::string, std::int64_t>> passed_over() const { return {}; }
  // With replace_bad_images(): the faults of the images that were replaced so far, with their paths. Otherwise none.
  virtual std::optional<std::vector<std::string>> replaced() const { return std::nullopt; }

  // Bytes by which the data set's image cache may still grow. The memory estimate adds them.
  virtual std::size_t bytes_to_cache() const { return 0; }
  // Bytes that a thread allocates to read an image, besides `out`. May be the largest of a sample of the images.
  virtual std::size_t bytes_to_read() const { return 0; }

  // A copy of one image, without augmentation.
  std::vector<std::uint8_t> image(std::int64_t index) const {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(image_shape().numel()));
    read(index, bytes, nullptr);
    return bytes;
  }
};

// All images of a data set, for device-resident use: its batches hold sample indices instead of pixels. Immutable.
struct ImageSet {
  Tensor images;  // (size,C,H,W) uint8
  Normalization normalization;
  Augmentation augmentation;  // applied if the loader augments: a random crop and a random flip, nothing else
};
// Reads all images with `threads` threads. Error(usage) if the data set varies its images, or if its normalisation does
// not fit them.
std::shared_ptr<const ImageSet> read_images(const Dataset& dataset, int threads = 1);

// How an evaluation with this data set prepares its images.
inline Preprocessing preprocessing_of(const Dataset& dataset) { return {dataset.normalization(), dataset.resizing()}; }

// The same data set without unreadable images. If read() throws Error(data) for an image, the next readable image of
// the same class is used instead. If the class has no readable image, Error(data) is thrown. Error(usage) for a data
// set with targets: another image has other targets.
std::shared_ptr<const Dataset> replace_bad_images(std::shared_ptr<const Dataset> dataset);
struct ImageCheck {
  std::vector<std::string> faults;  // of the images that cannot be read, with their paths, in the order of the data set
  Normalization measured;  // mean and standard deviation of x/255 per channel, over the images that can be read
};
// Reads every image with `threads` threads (0: one per core), without augmentation. `on_progress` is called with the
// number of images read so far.
ImageCheck check_images(const Dataset& dataset, int threads = 0,
                        const std::function<void(std::int64_t)>& on_progress = {});

// The same data set with changes to its augmentation. Error(usage), naming the option, for a value that is out of range
// or does not fit the images.
std::shared_ptr<const Dataset> with_augmentation(std::shared_ptr<const Dataset> dataset, const Augmentation& changes);

struct DatasetPair {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
};

// The same images with the labels of another list of classes, matched by name: class i is classes[i]. A data set may
// lack some of them. Error(data) if it has a class that is not in the list, Error(usage) if it names no classes, or a
// list names one twice.
DatasetPair with_classes(const DatasetPair& data, const std::vector<std::string>& classes);

// The same images with another normalisation. Error(usage) unless it has a mean and a positive deviation for each
// channel.
DatasetPair with_normalization(const DatasetPair& data, const Normalization& normalization);

// Divides a data set into training and test images. Of each class, `share` of the images are for testing: rounded, but
// at least one, and never all. A class with a single image has no test image. The seed and the position in the data set
// choose the images; both parts keep its order. Error(usage) unless 0 < share < 1. Error(data) if there is no test
// image.
DatasetPair split_off(const std::shared_ptr<const Dataset>& dataset, double share, std::uint64_t seed = 42);

namespace datasets {

// Digits drawn with strokes from (seed, index): 28x28, ten classes, no files needed. The two parts are disjoint.
DatasetPair digits(std::int64_t train = 60000, std::int64_t test = 10000, std::uint64_t seed = 42);

// IDX files, plain or .gz, in `folder`, `folder/raw` or `folder/<Name>/raw`. Sizes, magic numbers and the label range
// are checked before anything is allocated. Error(data) names the path, the offset and the remedy.
DatasetPair mnist(const std::string& folder);
DatasetPair fashion_mnist(const std::string& folder);

// The binary files of CIFAR in `folder`, or in `folder/cifar-10-batches-bin` or `folder/cifar-100-binary`, as the
// archives unpack them. Sizes and labels are checked. CIFAR-100 uses its 100 fine labels. Training images are padded by
// 4, cropped and flipped. Error(data) says what is missing and how to get it.
DatasetPair cifar10(const std::string& folder);
DatasetPair cifar100(const std::string& folder);

// JPEG, PNG and WebP files as <folder>/train/<class>/<image> and <folder>/val/<class>/<image> (or test/), also in
// folders below <class>; classes are sorted by name. This call lists the files; the loader's threads decode them.
// Images become side x side as in torchvision: a random resized crop and a flip for training (augment), otherwise a
// central crop. Error(data) for the files, Error(usage) for a side outside 1 to 4096 or an invalid `resizing`.
DatasetPair image_folder(const std::string& folder, std::int64_t side = 224, const Resizing& resizing = {});
// Only the training part. The test part may be missing.
std::shared_ptr<const Dataset> image_folder_train(const std::string& folder, std::int64_t side = 224,
                                                  const Resizing& resizing = {});

// The same images, listed in <folder>/train.csv and <folder>/val.csv (or test.csv): a line path,class for each, quoted
// as in RFC 4180, with or without a line of names before them. Further fields are ignored. Paths begin at `folder`, or
// with a slash. Classes are sorted by name, or by value if all are whole numbers. Without train.csv, JSON lines are
// read from train.jsonl: {"path": "1.jpg", "label": "cat"} for each image; likewise for testing. A field with the name
// sample_weight, or this key, has the weights of the images. Errors as above, with file and line.
DatasetPair image_list(const std::string& folder, std::int64_t side = 224, const Resizing& resizing = {});
std::shared_ptr<const Dataset> image_list_train(const std::string& folder, std::int64_t side = 224,
                                                const Resizing& resizing = {});

// The same files with targets instead of a class: a line path,number,... for each image, for losses of outputs
// (DataParallelOptions::output_loss). All images have as many targets. A first line without numbers has names.
// JSON lines: {"path": "1.jpg", "targets": [0.5, -2]}.
DatasetPair image_targets(const std::string& folder, std::int64_t side = 224, const Resizing& resizing = {});
std::shared_ptr<const Dataset> image_targets_train(const std::string& folder, std::int64_t side = 224,
                                                   const Resizing& resizing = {});

// Images in tar files, as WebDataset writes them: <folder>/train/*.tar and <folder>/val/*.tar (or test/), or tar files
// in `folder` with these words in their names. The files of a sample have the same path up to the first dot of their
// name: an image, and its class as text in .cls, or as "label" in .json. The archives are not compressed; this call
// lists them, and images are read in any order. Classes are sorted as those of a list. Errors as above, with file and
// name.
DatasetPair image_shards(const std::string& folder, std::int64_t side = 224, const Resizing& resizing = {});
std::shared_ptr<const Dataset> image_shards_train(const std::string& folder, std::int64_t side = 224,
                                                  const Resizing& resizing = {});

// Random bytes and labels from (seed, index), computed on reading.
DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed = 42);

// What is known of a data set without its files.
struct Entry {
  std::string name;  // on the command line
  std::string note;  // for --help; may be empty
  Shape image;       // (C,H,W)
  std::int64_t classes;
  std::int64_t epochs;  // dp_train's default
  std::string model;    // dp_train's default
  std::function<DatasetPair(const std::string& folder, std::uint64_t seed)> open;
  // For image files, else null: opens them with another size; opens only the training part.
  std::function<DatasetPair(const std::string& folder, std::int64_t side, const Resizing& resizing)> open_sized{};
  std::function<std::shared_ptr<const Dataset>(const std::string& folder, std::int64_t side, const Resizing& resizing)>
      open_train{};
};
const std::vector<Entry>& registry();
const Entry& find(std::string_view name);  // Error(usage) for an unknown name lists the names
void add(Entry entry);                     // adds a data set, as models::add() adds a network

}  // namespace datasets
}  // namespace dp
