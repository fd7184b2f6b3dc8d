#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/durable.h"
#include "engine/base/fault.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/safetensors_write.h"

namespace dp {
namespace {

const char* file_spelling(DType type) {
  switch (type) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::u8: return "U8";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
  }
  return "";
}

std::string quoted(const std::string& text, const std::string& path) try {
  return nlohmann::json(text).dump();
} catch (const nlohmann::json::type_error&) {
  throw Error(ErrorCode::usage, path + ": '" + excerpt(text) + "' is not valid UTF-8");
}

// Sorts by descending element size, then by name.
NamedTensors in_file_order(const NamedTensors& tensors) {
  NamedTensors sorted = tensors;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const std::size_t width_a = size_of(a.second.dtype()), width_b = size_of(b.second.dtype());
    return width_a != width_b ? width_a > width_b : a.first < b.first;
  });
  return sorted;
}

// Returns the 8-byte length and the padded JSON.
std::string make_header(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                        const std::string& path) {
  std::string json = "{";
  const auto separate = [&] { return json.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      json += comma + quoted(key, path) + ":" + quoted(value, path);
      comma = ",";
    }
    json += "}";
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.empty() || !tensor.storage()->host_accessible())
      throw Error(ErrorCode::usage, path + ": tensor '" + excerpt(name) + "' has no host memory; copy it there first");
    json += separate() + quoted(name, path) + ":{\"dtype\":\"" + file_spelling(tensor.dtype()) + "\",\"shape\":[";
    for (int i = 0; i < tensor.shape().rank(); ++i) json += (i ? "," : "") + std::to_string(tensor.shape()[i]);
    json += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + tensor.bytes()) + "]}";
    offset += tensor.bytes();
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  if (length > kLongestHeader)
    throw Error(ErrorCode::usage, path + ": the header would be longer than 100,000,000 bytes");
  try {
    parse_safetensors_header(json, offset, path);  // rejects a header that could not be read back
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

}  // namespace

void write_tensors(FileWriter& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  const NamedTensors sorted = in_file_order(tensors);
  file.write(make_header(sorted, metadata, file.path()));
  for (const auto& [name, tensor] : sorted)
    file.write(std::span(static_cast<const std::byte*>(tensor.raw()), tensor.bytes()));
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  replace_file(path, [&](FileWriter& file) { write_tensors(file, tensors, metadata); });
}

}  // namespace dp
