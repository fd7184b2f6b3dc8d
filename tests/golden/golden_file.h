// A committed file of PyTorch's figures.
#pragma once

#include <map>
#include <string>

#include "dp/tensor.h"
#include "kernels/host_tensor.h"

namespace dp::test {

// Of the committed files: DP_GOLDEN_FOLDER, for programs that have left their tree, or where they were in it.
std::string golden_folder();

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name);  // in golden_folder(), "layers.safetensors"

  bool has(const std::string& name) const { return tensors_.contains(name); }
  bool has_any(const std::string& prefix) const;  // a tensor whose name begins so
  const Tensor& at(const std::string& name) const;
  HostTensor values(const std::string& name) const;  // widened to double

 private:
  std::map<std::string, Tensor> tensors_;
};

}  // namespace dp::test
