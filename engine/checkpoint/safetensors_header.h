// The header of a safetensors file: names, types, shapes and offsets of its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/checkpoint/byte_source.h"

namespace dp {

enum class StoredAs : std::uint8_t { same, f16, bf16 };  // element type in the file; `same` as in memory

struct TensorEntry {
  std::string name;
  DType type = DType::f32;  // in memory
  StoredAs stored = StoredAs::same;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header

  std::uint64_t memory() const { return static_cast<std::uint64_t>(shape.numel()) * size_of(type); }
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

// Reads all tensors of a file, in file order.
NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata = nullptr);

}  // namespace dp
