// A committed file of values from PyTorch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dp/tensor.h"
#include "kernels/host_tensor.h"

namespace dp::test {

// The folder of the committed files: DP_GOLDEN_FOLDER if set, for programs that were moved; else their place in the
// source tree.
std::string golden_folder();

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name);  // a name in golden_folder(), such as "layers.safetensors"

  bool has(const std::string& name) const { return tensors_.contains(name); }
  std::vector<std::string> names() const;         // of all tensors, ascending
  bool has_any(const std::string& prefix) const;  // a tensor name starts with `prefix`
  const Tensor& at(const std::string& name) const;
  HostTensor values(const std::string& name) const;  // converted to double

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace dp::test
