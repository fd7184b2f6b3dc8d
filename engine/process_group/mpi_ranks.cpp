// Process group options for ranks that mpirun or srun started. MPI provides rank and size, and broadcasts rank 0's
// address, port and token.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstdlib>
#include <memory>
#include <sstream>

#include "dp/process_group.h"
#include "engine/process_group/socket.h"
#include "engine/process_group/token.h"
#include "kernels/mpi_plugin.h"

namespace dp {
namespace {

bool is_set(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0';
}

bool all_on_one_host(int size) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})
    if (is_set(name)) return std::atoi(std::getenv(name)) == size;
  return false;
}

// The first IPv4 address of an active interface other than loopback, or 127.0.0.1.
std::string outward_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "127.0.0.1";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    return text;
  }
  return "127.0.0.1";
}

}  // namespace

bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (is_set(name)) return true;
  return false;
}

std::optional<ProcessGroupOptions> process_group_from_mpi() {
  if (!started_by_mpi()) return std::nullopt;
  kernels::Mpi* const mpi = kernels::mpi_plugin();
  if (mpi == nullptr)
    throw Error(ErrorCode::usage, "this process was started by mpirun, but " + kernels::mpi_reason() +
                                      "; start the ranks with --engine ddp alone, or with torchrun");
  mpi->start();
  ProcessGroupOptions options;
  options.rank = mpi->rank();
  options.size = mpi->size();
  options.mpi = true;
  if (options.size == 1) return options;
  std::string mine;
  FileHandle listener;
  if (options.rank == 0) {
    const char* const named = std::getenv("MASTER_ADDR");
    options.address = is_set("MASTER_ADDR")           ? named
                      : all_on_one_host(options.size) ? std::string("127.0.0.1")
                                                      : outward_address();
    listener = process_group::listen_on(options.address, 0);
    mine =
        options.address + " " + std::to_string(process_group::port_of(listener)) + " " + process_group::drawn_token();
  }
  std::istringstream text(mpi->broadcast(mine));
  text >> options.address >> options.port >> options.token;
  options.listener = listener.release();
  return options;
}

}  // namespace dp
