// An execution context: where a thread of execution stopped, and the switch to another one.
#pragma once

#include <cstddef>

namespace dp::simt {

struct Context {
  void* saved = nullptr;
  // For the address sanitizer: the stack of the context.
  void* fake_stack = nullptr;
  const void* low = nullptr;
  std::size_t bytes = 0;
};

// Makes `context` start with entry() on the stack [low, low + bytes). entry() must not return.
void make_context(Context& context, void* low, std::size_t bytes, void (*entry)());
// Saves the caller's state in `from` and continues in `to`.
void switch_context(Context& from, Context& to);
// Frees the resources of the context of an operating system thread.
void release_context(Context& context);

}  // namespace dp::simt
