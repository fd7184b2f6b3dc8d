#include "kernels/comm/join.h"

#include <unistd.h>

#include <sstream>
#include <string>

#include "kernels/comm/host_communicator.h"
#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/comm/wire_communicator.h"
#include "kernels/device/host/shared_memory.h"

namespace dp::kernels {
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
