// What is known of the files of MNIST and CIFAR: the names of their classes, and other editions of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dp {

// Class names of the data sets in which a class is only a number.
std::vector<std::string> fashion_mnist_names();
std::vector<std::string> cifar10_names();
std::vector<std::string> cifar100_names();  // the fine labels

// Files of other editions and data sets, where those of MNIST or CIFAR are missing.

// Part of a message about missing files: which other edition or data set these folders contain, and what to do, as in
// "; found 'cifar-10-batches-py' (the Python edition ...) in there". Empty if nothing is recognised. `dataset`:
// "cifar10".
struct FoundInstead {
  std::string text;
  std::string archive{};  // path of the archive that contains the files, if it was not unpacked; or empty
};
FoundInstead cifar_found_instead(const std::vector<std::filesystem::path>& places, const std::string& dataset);
// The same for MNIST and Fashion-MNIST: IDX files of other names or types, EMNIST, QMNIST and others.
std::string mnist_found_instead(const std::vector<std::filesystem::path>& places);
// The parent folder of a path; "." if the path is only a name.
inline std::string folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path().string() : ".";
}

}  // namespace dp
