#include "kernels/host/host_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/host/host_op.h"
#include "kernels/op_args.h"

namespace dp::kernels {
namespace {

struct OpCall {
  HostOp* op;
  void* args[kMaxOpArgs];
  std::size_t count;
  void* workspace;
  bool operator()() {
    op->execute({args, count}, workspace);
    return true;
  }
};

struct CopyCall {
  void* dst;
  const void* src;
  std::size_t bytes;
  bool operator()() {
    std::memcpy(dst, src, bytes);
    return true;
  }
};

struct UploadCall {
  void* dst;
  std::size_t bytes;
  unsigned char source[kMaxUploadBytes];
  bool operator()() {
    std::memcpy(dst, source, bytes);
    return true;
  }
};

struct WaitCall {
  const Progress* progress;
  std::uint64_t ticket;
  bool operator()() { return progress->reached(ticket); }
};

static_assert(sizeof(OpCall) <= Task::kMaxBytes && sizeof(UploadCall) <= Task::kMaxBytes);

}  // namespace

void StreamGroup::fail(std::exception_ptr failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failed()) return;
  failure_ = std::move(failure);
  for (Halted* const helper : helpers_) helper->halt();
  failed_.store(true, std::memory_order_release);
}

void StreamGroup::add(Halted& helper) {
  const std::lock_guard lock(mutex_);
  helpers_.push_back(&helper);
}

void StreamGroup::remove(Halted& helper) {
  const std::lock_guard lock(mutex_);
  std::erase(helpers_, &helper);
}

void HostStream::record(Event& event) {
  auto& recorded = static_cast<HostEvent&>(event);
  recorded.progress = &progress_;
  recorded.ticket = issued_;
}

void HostStream::wait(Event& event) {
  const auto& recorded = static_cast<const HostEvent&>(event);
  if (recorded.progress == nullptr || recorded.progress == &progress_) return;
  Task wait(WaitCall{recorded.progress, recorded.ticket});
  wait.waits_for_event = true;
  submit(wait);
}

void HostStream::copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes > 0 && dst != src) submit(Task(CopyCall{dst, src, bytes}));
}

void HostStream::download(void* dst, const void* src, std::size_t bytes) {
  synchronize();
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

void HostStream::upload(void* dst, const void* src, std::size_t bytes) {
  if (bytes > kMaxUploadBytes)
    throw Error(ErrorCode::usage, "an upload of " + std::to_string(bytes) + " bytes exceeds the limit of " +
                                      std::to_string(kMaxUploadBytes) + "; use a copy instead");
  UploadCall call;
  call.dst = dst;
  call.bytes = bytes;
  std::memcpy(call.source, src, bytes);
  submit(Task(call));
}

void HostStream::drop_unfinished() noexcept {
  if (progress_.reached(issued_)) return;
  group_.fail(std::make_exception_ptr(Error(ErrorCode::usage, "a stream was destroyed before its work was done")));
}

void HostOp::run(Stream& stream, std::span<void* const> args, void* workspace) {
  if (args.size() > kMaxOpArgs)
    throw Error(ErrorCode::usage,
                "an op takes at most " + std::to_string(kMaxOpArgs) + " arguments, not " + std::to_string(args.size()));
  OpCall call;
  call.op = this;
  call.count = args.size();
  call.workspace = workspace;
  std::copy(args.begin(), args.end(), call.args);
  static_cast<HostStream&>(stream).submit(Task(call));
}

}  // namespace dp::kernels
