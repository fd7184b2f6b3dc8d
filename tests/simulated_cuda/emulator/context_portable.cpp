// For processors other than x86-64.
#include <ucontext.h>

#include "simulated_cuda/emulator/context.h"

namespace dp::simt {

void make_context(Context& context, void* low, std::size_t bytes, void (*entry)()) {
  // The record is stored at the far end of its own stack.
  constexpr std::size_t kRecord = (sizeof(ucontext_t) + 63) / 64 * 64;
  auto* const record = static_cast<ucontext_t*>(low);
  getcontext(record);
  record->uc_stack.ss_sp = static_cast<char*>(low) + kRecord;
  record->uc_stack.ss_size = bytes - kRecord;
  record->uc_link = nullptr;
  makecontext(record, entry, 0);
  context.saved = record;
}

void switch_context(Context& from, Context& to) {
  if (from.saved == nullptr) from.saved = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.saved), static_cast<ucontext_t*>(to.saved));
}

void release_context(Context& context) {
  delete static_cast<ucontext_t*>(context.saved);
  context.saved = nullptr;
}

}  // namespace dp::simt
