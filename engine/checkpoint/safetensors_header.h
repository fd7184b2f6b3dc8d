// The head of a safetensors file: which tensors it holds, and where. Nothing here reads or allocates a tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/checkpoint/byte_source.h"

namespace dp {

enum class StoredAs : std::uint8_t { same, f16, bf16 };  // how the file spells the element type

struct TensorEntry {
  std::string name;
  DType type = DType::f32;  // in memory
  StoredAs stored = StoredAs::same;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the first byte behind the header

  std::uint64_t memory() const { return static_cast<std::uint64_t>(shape.numel()) * size_of(type); }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // offset of the first tensor's bytes in the file
};

inline constexpr std::uint64_t kLongestHeader = 100'000'000;

// Validates everything that can be known without the tensors' bytes: Error(data) names `path` and the fault.
SafetensorsHeader read_safetensors_header(ByteSource& source);
// `json` is the header's text, `data_bytes` what follows it.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

// Why a tensor may not have this name; empty when it may. A name is never used as a path, and could not climb if it
// were.
std::string fault_of_tensor_name(std::string_view name);

// All tensors of a file, in the order of their bytes.
NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata = nullptr);

}  // namespace dp
