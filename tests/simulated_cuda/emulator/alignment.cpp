// The handler that code compiled with -fsanitize=alignment calls before a misaligned access. GCC and Clang share the
// layout of the record, "type mismatch, version 1".
#include <cstdint>
#include <cstdio>

#include "simulated_cuda/emulator/block.h"

namespace {

struct TypeName {
  std::uint16_t kind, info;
  char name[1];
};
struct MisalignedAccess {
  const char* file;
  std::uint32_t line, column;
  const TypeName* type;
  unsigned char log_alignment, kind;
};

}  // namespace

// Weak: a program that is linked with the sanitizer's runtime uses the runtime's handler.
extern "C" __attribute__((weak)) void __ubsan_handle_type_mismatch_v1(MisalignedAccess* access, void* address) {
  using namespace dp::simt;
  const Site site{access->file, static_cast<int>(access->line)};
  char text[320];
  std::snprintf(text, sizeof text, "%s of %s at %s:%d: %p is no multiple of %u",
                access->kind == 1 ? "a store" : "a load", access->type->name, site.name(), site.line, address,
                1u << access->log_alignment);
  if (running_block == nullptr || !running_block->on_fiber()) return;
  running_block->fail_address(text, nullptr, cudaErrorMisalignedAddress);
}
