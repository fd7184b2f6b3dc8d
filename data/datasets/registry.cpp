#include "dp/dataset.h"
#include "dp/error.h"

namespace dp::datasets {
namespace {

template <DatasetPair (*kOpen)(const std::string&)>
DatasetPair from_files(const std::string& folder, std::uint64_t) {
  return kOpen(folder);
}
DatasetPair open_digits(const std::string&, std::uint64_t seed) { return digits(60000, 10000, seed); }
DatasetPair open_image_folder(const std::string& folder, std::uint64_t) { return image_folder(folder); }
DatasetPair open_synthetic(const std::string&, std::uint64_t seed) {
  return synthetic(Shape{1, 28, 28}, 10, 60000, 10000, seed);
}

}  // namespace

const std::vector<Entry>& registry() {
  static const std::vector<Entry> entries{
      {"digits", "drawn, needs no files", {1, 28, 28}, 10, 1, "mnist_convnet", open_digits},
      {"mnist", "", {1, 28, 28}, 10, 3, "mnist_convnet", from_files<mnist>},
      {"fashion_mnist", "", {1, 28, 28}, 10, 10, "mnist_convnet", from_files<fashion_mnist>},
      {"cifar10", "", {3, 32, 32}, 10, 30, "resnet18", from_files<cifar10>},
      {"cifar100", "", {3, 32, 32}, 100, 30, "resnet18", from_files<cifar100>},
      {"imagefolder", "a class per folder", {3, 224, 224}, 1000, 90, "resnet18", open_image_folder},
      {"synthetic", "random bytes", {1, 28, 28}, 10, 1, "mnist_convnet", open_synthetic},
  };
  return entries;
}

const Entry& find(std::string_view name) {
  std::string names;
  for (const Entry& entry : registry()) {
    if (entry.name == name) return entry;
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  throw Error(ErrorCode::usage, "dataset '" + std::string(name) + "' does not exist; choose one of " + names);
}

}  // namespace dp::datasets
