// Files of other editions and data sets, where those of MNIST or CIFAR are missing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dp {

// "; found 'cifar-10-batches-py' (the Python edition ...) in there": what is in these folders and is known to be given
// by mistake, and what to do with it. Empty if there is nothing of the kind. `dataset`: "cifar10".
struct FoundInstead {
  std::string text;
  std::string archive{};  // of the files themselves, not unpacked; empty if there is none
};
FoundInstead cifar_found_instead(const std::vector<std::filesystem::path>& places, const std::string& dataset);
// The same for MNIST and Fashion-MNIST: IDX files of other names or types, EMNIST, QMNIST and others.
std::string mnist_found_instead(const std::vector<std::filesystem::path>& places);

}  // namespace dp
