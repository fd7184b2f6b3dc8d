// Class names of the data sets in which a class is only a number.
#pragma once

#include <string>
#include <vector>

namespace dp {

std::vector<std::string> fashion_mnist_names();
std::vector<std::string> cifar10_names();
std::vector<std::string> cifar100_names();  // the fine labels

}  // namespace dp
