#include "kernels/comm/wire_communicator.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <system_error>

#include "kernels/comm/host_communicator.h"
#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/device/host/cores.h"
#include "kernels/device/host/memory.h"

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
  ::pthread_setname_np(::pthread_self(), "communication");
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

namespace {

// The communicator "host" between processes. Rank 0 allocates the call board in shared memory and the other ranks map
// it. After that it works as between threads.
std::unique_ptr<Communicator> join_in_shared_memory(const HostContext& context, Rendezvous& rendezvous) {
  if (!rendezvous.one_host())
    throw Error(ErrorCode::usage,
                "communicator host connects only processes of one host that can see each other; start the ranks with "
                "mpirun and --comm mpi");
  if (!context.options().peer_processes)
    throw Error(ErrorCode::usage, "communicator host requires a context with shared memory");
  std::shared_ptr<Buffer> lines;
  if (rendezvous.rank() == 0) lines = allocate_shared(CallBoard::lines_bytes(rendezvous.size()));
  const SharedPlace own = lines ? find_shared(lines->data()) : SharedPlace{};
  std::ostringstream mine;
  mine << ::getpid() << ' ' << own.file << ' ' << own.serial << ' ' << own.bytes;
  std::vector<pid_t> processes;
  SharedPlace board;
  for (const std::string& text : rendezvous.exchange(mine.str())) {
    std::istringstream in(text);
    SharedPlace place;
    pid_t process = 0;
    in >> process >> place.file >> place.serial >> place.bytes;
    if (processes.empty()) board = place;
    processes.push_back(process);
  }
  auto peers = std::make_unique<PeerMemory>(processes);
  void* const memory = rendezvous.rank() == 0 ? lines->data() : peers->at(0, board);
  auto joined = std::make_shared<CallBoard>("host", rendezvous.size(), memory, std::move(lines), std::move(peers));
  rendezvous.exchange("");  // barrier: all ranks have mapped the board
  return std::make_unique<HostCommunicator>(std::move(joined), rendezvous.rank(), context.options().threads);
}

}  // namespace

// Shared memory is the fastest if all ranks can use it. MPI, if it started the ranks, is set up for the network between
// their hosts (docs/decisions/0040).
CommunicatorChoice default_for(const Rendezvous& rendezvous) {
  if (rendezvous.one_host()) return {"host", "all ranks run on one host and share its memory"};
  Mpi* const mpi = mpi_plugin();
  if (mpi != nullptr && mpi->started()) return {"mpi", "the ranks run on several hosts and were started by MPI"};
  throw Error(ErrorCode::usage,
              "CPU ranks require MPI if they run on several hosts or cannot see each other's processes; start them "
              "with mpirun");
}

std::unique_ptr<Communicator> join_from_host(std::string_view name, Context& context, Rendezvous& rendezvous) {
  auto* const host = dynamic_cast<HostContext*>(&context);
  if (name == "host" && host != nullptr) return join_in_shared_memory(*host, rendezvous);
  if (name == "mpi" && host != nullptr) return std::make_unique<WireCommunicator>(make_mpi_wire(rendezvous), *host);
  throw Error(ErrorCode::usage, "communicator '" + std::string(name) + "' cannot connect processes on " +
                                    to_string(context.device()) + "; use --comm host or mpi");
}

}  // namespace dp::kernels
