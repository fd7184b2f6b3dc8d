// Eight pushes and pops. About ten times faster than swapcontext, which saves the signal mask with a system call.
#include "simulated_cuda/emulator/context.h"

extern "C" void dp_simt_switch(void** save, void* load);
asm(R"(.text
.p2align 4
.type dp_simt_switch,@function
dp_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dp_simt_switch,.-dp_simt_switch
)");

namespace dp::simt {

void make_context(Context& context, void* low, std::size_t bytes, void (*entry)()) {
  char* const top = static_cast<char*>(low) + bytes;
  // entry() expects the stack as after a call: the return address popped, 8 bytes below a multiple of 16.
  reinterpret_cast<void**>(top)[-2] = reinterpret_cast<void*>(entry);
  context.saved = top - 8 * sizeof(void*);
}

void switch_context(Context& from, Context& to) { dp_simt_switch(&from.saved, to.saved); }

void release_context(Context&) {}

}  // namespace dp::simt
