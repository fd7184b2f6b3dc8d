#include <bit>
#include <cstring>
#include <new>

#include "dp/checkpoint.h"
#include "engine/base/available_memory.h"
#include "engine/base/fault.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/low_float.h"

namespace dp {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are taken as they are");

// The 16-bit values occupy the upper half of the buffer. Value i is never stored before result i, so ascending order
// overwrites only values that were read.
void widen_in_place(Tensor& tensor, StoredAs stored) {
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  const auto count = static_cast<std::size_t>(tensor.numel());
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, bytes + 2 * count + 2 * i, sizeof half);
    const float value = stored == StoredAs::f16 ? kernels::to_float(kernels::Float16{half})
                                                : kernels::to_float(kernels::BFloat16{half});
    std::memcpy(bytes + 4 * i, &value, sizeof value);
  }
}

Tensor read_tensor(ByteSource& source, const TensorEntry& entry, std::uint64_t data_begin) {
  Tensor tensor(entry.shape, entry.type);
  const std::span<std::byte> memory(static_cast<std::byte*>(tensor.raw()), tensor.bytes());
  source.read(data_begin + entry.begin, memory.last(entry.end - entry.begin));
  if (entry.stored != StoredAs::same) widen_in_place(tensor, entry.stored);
  return tensor;
}

}  // namespace

NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata) try {
  SafetensorsHeader header = read_safetensors_header(source);
  std::uint64_t needed = 0;
  for (const TensorEntry& entry : header.tensors) needed += entry.memory();  // at most twice the file size
  const std::uint64_t available = available_memory();
  if (needed > available)
    throw_data(source.name(),
               "needs " + std::to_string(needed) + " bytes of memory, but " + std::to_string(available) + " are free");
  NamedTensors tensors;
  tensors.reserve(header.tensors.size());
  for (TensorEntry& entry : header.tensors) {
    Tensor tensor = read_tensor(source, entry, header.data_begin);
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
