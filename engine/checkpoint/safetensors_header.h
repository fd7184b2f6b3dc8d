// The header of a safetensors file: names, types, shapes and offsets of its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/checkpoint/byte_source.h"

namespace dp {

// An element type of the format. Types that DType lacks, and 16-bit floats, are widened when they are read.
struct StoredType {
  std::string_view spelling;  // in the file: "BF16"
  std::string_view name;      // PyTorch's: "bfloat16"
  std::uint64_t width;        // bytes in the file
  DType type;                 // in memory
  // Converts values in place. The stored values occupy the end of `memory`. Null if no conversion is needed. False if
  // a value does not fit.
  bool (*widen)(std::span<std::byte> memory) = nullptr;
};
const StoredType* find_stored_type(std::string_view spelling);  // null if it is not supported

struct TensorEntry {
  std::string name;
  const StoredType* stored = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header

  std::uint64_t memory() const { return static_cast<std::uint64_t>(shape.numel()) * size_of(stored->type); }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // offset of the first tensor's bytes in the file
};

inline constexpr std::uint64_t kLongestHeader = 100'000'000;

// Reads and validates the header without the tensors' data. Error(data) names the file and the fault.
SafetensorsHeader read_safetensors_header(ByteSource& source);
// `json`: the header's text. `data_bytes`: size of the data after it.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

// Why a tensor must not have this name; empty if it may. Names are never used as paths; the rules exclude path
// traversal nevertheless.
std::string fault_of_tensor_name(std::string_view name);

// Reads all tensors of a file, in file order. `types` receives PyTorch's name of the type of each in the file.
NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata = nullptr,
                              std::map<std::string, std::string_view>* types = nullptr);

}  // namespace dp
