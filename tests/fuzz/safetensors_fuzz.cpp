// The libFuzzer entry point of the safetensors reader: every input is read or refused with Error(data).
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "dp/error.h"
#include "engine/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dp::MemorySource source("input", std::as_bytes(std::span(data, size)));
  try {
    std::size_t bytes = 0;
    for (const auto& [name, tensor] : dp::read_safetensors(source)) {
      if (!dp::fault_of_tensor_name(name).empty()) std::abort();
      bytes += tensor.bytes();
    }
    if (bytes > 2 * size) std::abort();
  } catch (const dp::Error& error) {
    if (error.code() != dp::ErrorCode::data) std::abort();
  }
  return 0;
}
