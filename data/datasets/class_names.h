// Names of the classes of data sets whose files have numbers only.
#pragma once

#include <string>
#include <vector>

namespace dp {

std::vector<std::string> fashion_mnist_names();
std::vector<std::string> cifar10_names();
std::vector<std::string> cifar100_names();  // the fine labels

}  // namespace dp
