// Where a thread of execution stopped, and the step from one to another.
#pragma once

#include <cstddef>

namespace dp::simt {

struct Context {
  void* saved = nullptr;
  // For the address sanitizer: the stack it runs on.
  void* fake_stack = nullptr;
  const void* low = nullptr;
  std::size_t bytes = 0;
};

// Makes `context` start with entry() on the stack [low, low + bytes). entry never returns.
void make_context(Context& context, void* low, std::size_t bytes, void (*entry)());
// Keeps where the caller is in `from` and goes on in `to`.
void switch_context(Context& from, Context& to);
// Frees what a context of an operating system's thread holds.
void release_context(Context& context);

}  // namespace dp::simt
