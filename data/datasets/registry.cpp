// The list of data sets, and the synthetic one.
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/named_entries.h"
#include "dp/random.h"

namespace dp {
namespace {

class Synthetic final : public Dataset {
 public:
  Synthetic(const Shape& image, std::int64_t classes, std::int64_t count, std::uint64_t seed, std::uint64_t part)
      : image_(image), classes_(classes), count_(count), seed_(seed), part_(part) {
    const auto channels = static_cast<std::size_t>(image[0]);
    normalization_ = {std::vector<float>(channels, 0.5f), std::vector<float>(channels, 0.2887f)};  // of uniform bytes
  }

  std::int64_t size() const override { return count_; }
  Shape image_shape() const override { return image_; }
  std::int64_t classes() const override { return classes_; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override {
    Random random = stream(index);
    return draw_label(random);
  }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    Random random = stream(index);
    draw_label(random);
    std::uint32_t word = 0;
    for (std::size_t byte = 0; byte < out.size(); ++byte) {
      word = byte % 4 == 0 ? random.next() : word >> 8;
      out[byte] = static_cast<std::uint8_t>(word);
    }
  }
  bool varies() const override { return false; }

 private:
  Random stream(std::int64_t index) const {
    return Random(seed_, RandomUse::synthetic, static_cast<std::uint64_t>(index), part_);
  }
  std::int32_t draw_label(Random& random) const {
    return static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(classes_)));
  }

  Shape image_;
  std::int64_t classes_, count_;
  std::uint64_t seed_, part_;
  Normalization normalization_;
};

}  // namespace

namespace datasets {

DatasetPair synthetic(const Shape& image, std::int64_t classes, std::int64_t train, std::int64_t test,
                      std::uint64_t seed) {
  if (image.rank() != 3 || image.numel() == 0)
    throw Error(ErrorCode::usage, "synthetic: the image shape is " + to_string(image) +
                                      "; give channels, rows and columns, each at least 1");
  if (classes < 1 || classes > INT32_MAX || train < 0 || test < 0)
    throw Error(ErrorCode::usage, "synthetic: " + std::to_string(classes) + " classes, " + std::to_string(train) +
                                      " and " + std::to_string(test) +
                                      " images cannot be made; give 1 to 2147483647 classes and counts of 0 or more");
  return {std::make_shared<Synthetic>(image, classes, train, seed, 0),
          std::make_shared<Synthetic>(image, classes, test, seed, 1)};
}

namespace {

template <DatasetPair (*kOpen)(const std::string&)>
DatasetPair from_files(const std::string& folder, std::uint64_t) {
  return kOpen(folder);
}
DatasetPair open_digits(const std::string&, std::uint64_t seed) { return digits(60000, 10000, seed); }
DatasetPair open_image_folder(const std::string& folder, std::uint64_t) { return image_folder(folder); }
DatasetPair open_image_list(const std::string& folder, std::uint64_t) { return image_list(folder); }
DatasetPair open_image_targets(const std::string& folder, std::uint64_t) { return image_targets(folder); }
DatasetPair open_image_shards(const std::string& folder, std::uint64_t) { return image_shards(folder); }
DatasetPair open_synthetic(const std::string&, std::uint64_t seed) {
  return synthetic(Shape{1, 28, 28}, 10, 60000, 10000, seed);
}

std::vector<Entry>& entries() {
  static std::vector<Entry> all{
      {"digits", "drawn, needs no files", {1, 28, 28}, 10, 1, "mnist_convnet", open_digits},
      {"mnist", "", {1, 28, 28}, 10, 3, "mnist_convnet", from_files<mnist>},
      {"fashion_mnist", "", {1, 28, 28}, 10, 10, "mnist_convnet", from_files<fashion_mnist>},
      {"cifar10", "", {3, 32, 32}, 10, 30, "resnet18", from_files<cifar10>},
      {"cifar100", "", {3, 32, 32}, 100, 30, "resnet18", from_files<cifar100>},
      {"imagefolder",
       "a class per folder",
       {3, 224, 224},
       1000,
       90,
       "resnet18",
       open_image_folder,
       image_folder,
       image_folder_train},
      {"imagelist",
       "CSV or JSON lines of paths and classes",
       {3, 224, 224},
       1000,
       90,
       "resnet18",
       open_image_list,
       image_list,
       image_list_train},
      {"imagetargets",
       "CSV or JSON lines of paths and numbers",
       {3, 224, 224},
       1,
       90,
       "resnet18",
       open_image_targets,
       image_targets,
       image_targets_train},
      {"imageshards",
       "tar files of images and classes",
       {3, 224, 224},
       1000,
       90,
       "resnet18",
       open_image_shards,
       image_shards,
       image_shards_train},
      {"synthetic", "random bytes", {1, 28, 28}, 10, 1, "mnist_convnet", open_synthetic},
  };
  return all;
}

}  // namespace

const std::vector<Entry>& registry() { return entries(); }
const Entry& find(std::string_view name) { return find_entry(entries(), name, "dataset"); }
void add(Entry entry) { add_entry(entries(), std::move(entry), "dataset"); }

}  // namespace datasets

}  // namespace dp
