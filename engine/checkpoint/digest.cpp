#include <algorithm>
#include <string_view>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/fault.h"
#include "engine/base/sha256.h"

namespace dp {

// Input of the digest, per tensor in order of name: name, zero byte, type, zero byte, shape, zero byte, data. Type and
// shape are formatted by to_string().
std::string weights_sha256(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> sorted;
  for (const auto& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  Sha256 digest;
  for (const auto* entry : sorted) {
    const auto& [name, tensor] = *entry;
    if (tensor.empty() || !tensor.storage()->host_accessible())
      throw Error(ErrorCode::usage, "tensor '" + excerpt(name) + "' has no host memory; copy it there first");
    digest.add_field(name);
    digest.add_field(to_string(tensor.dtype()));
    digest.add_field(to_string(tensor.shape()));
    digest.add(tensor.raw(), tensor.bytes());
  }
  return digest.hexadecimal();
}

}  // namespace dp
