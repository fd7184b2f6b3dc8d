#include "dp/dataset.h"
#include "dp/error.h"

namespace dp::datasets {

const std::vector<std::string>& names() {
  static const std::vector<std::string> all{"digits",   "mnist",       "fashion_mnist", "cifar10",
                                            "cifar100", "imagefolder", "synthetic"};
  return all;
}

DatasetPair open(std::string_view name, const std::string& folder, std::uint64_t seed) {
  if (name == "digits") return digits(60000, 10000, seed);
  if (name == "mnist") return mnist(folder);
  if (name == "fashion_mnist") return fashion_mnist(folder);
  if (name == "cifar10") return cifar10(folder);
  if (name == "cifar100") return cifar100(folder);
  if (name == "imagefolder") return image_folder(folder);
  if (name == "synthetic") return synthetic(Shape{1, 28, 28}, 10, 60000, 10000, seed);  // MNIST's sizes
  std::string known;
  for (const std::string& each : names()) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorCode::usage, "dataset \"" + std::string(name) + "\" does not exist; choose one of " + known);
}

}  // namespace dp::datasets
