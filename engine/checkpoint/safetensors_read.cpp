#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "dp/checkpoint.h"
#include "engine/base/available_memory.h"
#include "engine/base/fault.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/low_float.h"

namespace dp {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are taken as they are");

// Value i is never stored before result i, so ascending order overwrites only values that were read.
template <typename From, auto Convert>
bool widen(std::span<std::byte> memory) {
  using To = typename std::invoke_result_t<decltype(Convert), From>::value_type;
  const std::size_t count = memory.size() / sizeof(To);
  const std::byte* const stored = memory.data() + (memory.size() - count * sizeof(From));
  for (std::size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, stored + i * sizeof from, sizeof from);
    const std::optional<To> to = Convert(from);
    if (!to) return false;
    std::memcpy(memory.data() + i * sizeof *to, &*to, sizeof *to);
  }
  return true;
}

template <typename Low>
std::optional<float> from_low(std::uint16_t bits) {
  return kernels::to_float(Low{bits});
}
// Float8 of PyTorch: e5m2 is the upper byte of a float16; e4m3fn has no infinity, and NaN only as 0x7f and 0xff.
std::optional<float> from_e5m2(std::uint8_t bits) {
  return kernels::to_float(kernels::Float16{static_cast<std::uint16_t>(bits << 8)});
}
std::optional<float> from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(value, bits & 0x80 ? -1.0f : 1.0f);
}
template <typename To, typename From>
std::optional<To> from_integer(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

constexpr StoredType kStoredTypes[] = {
    {"F32", "float32", 4, DType::f32},
    {"F64", "float64", 8, DType::f64},
    {"F16", "float16", 2, DType::f32, widen<std::uint16_t, from_low<kernels::Float16>>},
    {"BF16", "bfloat16", 2, DType::f32, widen<std::uint16_t, from_low<kernels::BFloat16>>},
    {"F8_E4M3", "float8_e4m3fn", 1, DType::f32, widen<std::uint8_t, from_e4m3>},
    {"F8_E5M2", "float8_e5m2", 1, DType::f32, widen<std::uint8_t, from_e5m2>},
    {"I64", "int64", 8, DType::i64},
    {"I32", "int32", 4, DType::i32},
    {"I16", "int16", 2, DType::i32, widen<std::int16_t, from_integer<std::int32_t, std::int16_t>>},
    {"I8", "int8", 1, DType::i32, widen<std::int8_t, from_integer<std::int32_t, std::int8_t>>},
    {"U64", "uint64", 8, DType::i64, widen<std::uint64_t, from_integer<std::int64_t, std::uint64_t>>},
    {"U32", "uint32", 4, DType::i64, widen<std::uint32_t, from_integer<std::int64_t, std::uint32_t>>},
    {"U16", "uint16", 2, DType::i32, widen<std::uint16_t, from_integer<std::int32_t, std::uint16_t>>},
    {"U8", "uint8", 1, DType::u8},
    {"BOOL", "bool", 1, DType::u8}};

Tensor read_tensor(ByteSource& source, const TensorEntry& entry, std::uint64_t data_begin) {
  Tensor tensor(entry.shape, entry.stored->type);
  const std::span<std::byte> memory(static_cast<std::byte*>(tensor.raw()), tensor.bytes());
  source.read(data_begin + entry.begin, memory.last(entry.end - entry.begin));
  if (entry.stored->widen && !entry.stored->widen(memory))
    throw_data(source.name(),
               "tensor '" + excerpt(entry.name) + "' has a value beyond the range of " + to_string(entry.stored->type));
  return tensor;
}

}  // namespace

const StoredType* find_stored_type(std::string_view spelling) {
  const auto* const found = std::ranges::find(kStoredTypes, spelling, &StoredType::spelling);
  return found == std::end(kStoredTypes) ? nullptr : found;
}

NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata,
                              std::map<std::string, std::string_view>* types) try {
  SafetensorsHeader header = read_safetensors_header(source);
  std::uint64_t needed = 0;
  for (const TensorEntry& entry : header.tensors) needed += entry.memory();  // at most four times the file size
  const std::uint64_t available = available_memory();
  if (needed > available)
    throw_data(source.name(),
               "needs " + std::to_string(needed) + " bytes of memory, but " + std::to_string(available) + " are free");
  NamedTensors tensors;
  tensors.reserve(header.tensors.size());
  for (TensorEntry& entry : header.tensors) {
    Tensor tensor = read_tensor(source, entry, header.data_begin);
    if (types) types->emplace(entry.name, entry.stored->name);
    tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  if (metadata) *metadata = std::move(header.metadata);
  return tensors;
} catch (const std::bad_alloc&) {
  throw_data(source.name(), "does not fit into memory");
}

NamedTensors read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata) {
  FileSource source(path);
  return read_safetensors(source, metadata);
}

}  // namespace dp
