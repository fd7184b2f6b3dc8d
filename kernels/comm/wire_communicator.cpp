#include "kernels/comm/wire_communicator.h"

#include <algorithm>
#include <system_error>

#include "kernels/device/host/cores.h"

namespace dp::kernels {

CommunicationThread::CommunicationThread(std::unique_ptr<Wire> wire, StreamGroup& group)
    : wire_(std::move(wire)), group_(group), halt_(group.abort_flag()), jobs_(kSlots) {
  for (WireJob& job : jobs_) job.bytes.resize(static_cast<std::size_t>(wire_->size()));
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device, "the thread of communicator " + wire_->name() + " could not be started (" +
                                       error.code().message() + "); raise ulimit -u and -v");
  }
  group_.add(*this);
}

CommunicationThread::~CommunicationThread() {
  group_.remove(*this);
  quit_.store(true);
  halt_.ask();
  ring();
  thread_.join();
}

void CommunicationThread::enqueue(HostStream& stream) {
  slot(issued_).number = issued_;
  stream.submit(Task(Call{this, issued_++}));
}

bool CommunicationThread::attempt(Call& call) {
  if (!call.posted) {
    call.posted = true;
    posted_.store(call.number + 1, std::memory_order_release);
    ring();
    return false;
  }
  if (done_.load(std::memory_order_acquire) > call.number) return true;
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
  return false;
}

void CommunicationThread::halt() noexcept {
  halt_.ask();
  busy_.wait(true);
}

void CommunicationThread::ring() {
  bell_.fetch_add(1);
  bell_.notify_one();
}

void CommunicationThread::serve() {
  unpin_current_thread();
  for (std::uint64_t number = 0;;) {
    const std::uint32_t heard = bell_.load();
    if (quit_.load()) return;
    if (failed_.load(std::memory_order_relaxed) || posted_.load(std::memory_order_acquire) == number) {
      bell_.wait(heard);
      continue;
    }
    busy_.store(true);
    carry_out(slot(number++));
    busy_.store(false);
    busy_.notify_all();
  }
}

void CommunicationThread::carry_out(WireJob& job) {
  try {
    if (halt_.asked()) throw Aborted();
    wire_->run(job, halt_);
    done_.store(job.number + 1, std::memory_order_release);
  } catch (...) {
    failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

WireCommunicator::WireCommunicator(std::unique_ptr<Wire> wire, HostContext& context)
    : HostCollectives(wire->rank(), wire->size()), name_(wire->name()), thread_(std::move(wire), context.group()) {}

void WireCommunicator::enqueue(const CollectiveCall& call, void* data, void* part, std::span<const std::size_t> bytes,
                               Stream& stream) {
  WireJob& job = thread_.next();
  job.call = call;
  job.data = data;
  job.part = part;
  job.stride = stride_;
  std::copy(bytes.begin(), bytes.end(), job.bytes.begin());
  thread_.enqueue(static_cast<HostStream&>(stream));
}

}  // namespace dp::kernels
