#include "simulated_cuda/runtime/fault_handler.h"

#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "simulated_cuda/emulator/block.h"
#include "simulated_cuda/runtime/devices.h"

namespace dp::simt {
namespace {

struct sigaction before;  // the handler that ours replaced

struct Line {
  char text[640];
  std::size_t used = 0;

  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = std::vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    if (n > 0) used += static_cast<std::size_t>(n) < sizeof text - used ? n : sizeof text - used - 1;
  }
};

[[noreturn]] void leave(Line& line) {
  line.add("\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.text, line.used);
  constexpr int kForbiddenAccess = 99;
  _exit(kForbiddenAccess);
}

void describe_running(Line& line) {
  if (running.what == nullptr) {
    line.add("host code");
    return;
  }
  line.add("%s on cuda:%d", running.what, running.device);
  if (running_block != nullptr && running_block->on_fiber())
    line.add(" (block %u thread %u)", running_block->number(), running_block->thread());
}

void describe_place(Line& line, int owner, const void* address) {
  const Allocation near = device(owner).memory.nearest(address);
  if (near.begin == nullptr) return;
  const std::size_t at = static_cast<const char*>(address) - near.begin;
  if (at < near.bytes) {
    line.add(", byte %zu of an allocation of %zu", at, near.bytes);
  } else {
    line.add(", %zu bytes behind the end of an allocation of %zu", at - near.bytes, near.bytes);
  }
}

void on_fault(int, siginfo_t* info, void*) {
  if (info->si_code <= 0) {  // sent by a process
    sigaction(SIGSEGV, &before, nullptr);
    raise(SIGSEGV);  // delivered when this handler returns
    return;
  }
  const void* const address = info->si_addr;
  Line line;
  line.add("simulated CUDA: ");
  if (running_block != nullptr && running_block->is_stack(address)) {
    describe_running(line);
    line.add(" overflowed the stack of a thread");
    leave(line);
  }
  const int owner = owner_of(address);
  if (owner < 0) {
    sigaction(SIGSEGV, &before, nullptr);  // the instruction repeats and faults into the previous handler
    return;
  }
  describe_running(line);
  Allocation found = device(owner).memory.nearest(address);
  const bool allocated = found.begin != nullptr && found.holds(address, 1);
  line.add(" touched %smemory of cuda:%d", allocated ? "" : "unallocated ", owner);
  if (running.what != nullptr && owner != running.device && !device(running.device).reaches[owner])
    line.add(", which is no peer");
  line.add(" at %p", address);
  describe_place(line, owner, address);
  leave(line);
}

}  // namespace

void install_fault_handler() {
  struct sigaction now;
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  struct sigaction ours = {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, &before);
}

void give_thread_a_fault_stack() {
  constexpr std::size_t kBytes = 64 * 1024;
  alignas(64) static thread_local char memory[kBytes];  // the address sanitizer poisons it in words
  stack_t stack = {};
  sigaltstack(nullptr, &stack);
  if ((stack.ss_flags & SS_DISABLE) == 0) return;  // the address sanitizer has installed one
  stack = {};
  stack.ss_sp = memory;
  stack.ss_size = kBytes;
  sigaltstack(&stack, nullptr);
}

}  // namespace dp::simt
