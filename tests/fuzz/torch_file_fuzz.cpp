// The libFuzzer entry point of the reader of torch.save's files: every input is read or refused with Error(data).
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "dp/error.h"
#include "engine/checkpoint/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dp::MemorySource source("input", std::as_bytes(std::span(data, size)));
  try {
    std::size_t bytes = 0;
    const dp::TorchFile file = dp::read_torch_file(source, {});
    for (const auto& [name, tensor] : file.tensors) {
      if (!dp::fault_of_tensor_name(name).empty() || !file.types.contains(name)) std::abort();
      bytes += tensor.bytes();
    }
    if (bytes > 4 * 16 * (size + 1)) std::abort();  // 8-bit types are widened to 32
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data) std::abort();
  }
  return 0;
}
