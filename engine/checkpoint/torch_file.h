// Reader of the files that torch.save writes.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "dp/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {

// Whether the file begins as those of torch.save do, in any of their formats, or as another zip or pickle. No
// safetensors file begins like this.
bool is_torch_file(ByteSource& source);

struct TorchFile {
  NamedTensors tensors{};                           // in the order of the state dict
  std::map<std::string, std::string_view> types{};  // PyTorch's name of the type of each in the file
  std::string entry{};                              // the entry of the checkpoint that was read; empty: the whole
  std::string passed_over{};  // a list of its other entries, and of those of the state dict that are no tensors
};

// Reads the state dict in a file, or in the named entry of the checkpoint in it. Error(data) names the file and the
// fault. Memory: the pickle's (read_pickle), and at most 16 times the file's size for the tensors before they are
// widened, which only views of one storage can reach.
TorchFile read_torch_file(ByteSource& source, const std::string& entry);

}  // namespace dp
