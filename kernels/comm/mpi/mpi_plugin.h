// MPI as a plugin that is loaded at run time, so that one program runs with and without MPI.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kernels/comm/wire.h"

namespace dp::kernels {

// The MPI calls of this process. Call start() before rank(), size() and the collective functions. All ranks call the
// collective functions together.
class Mpi {
 public:
  virtual ~Mpi() = default;
  virtual std::string version() const = 0;  // of the MPI library, in one line
  // A second call does nothing. Error(usage) if the library does not grant MPI_THREAD_MULTIPLE, or after finish().
  virtual void start() = 0;
  virtual bool started() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string broadcast(std::string_view from_rank_0) = 0;  // collective; at most 64 KiB
  // Collective. The wire's calls pass at most `most` elements at a time to the library.
  virtual std::unique_ptr<Wire> make_wire(std::int64_t most) = 0;
  // Collective. Destroy all wires first. Does nothing if MPI is not started or already finished.
  virtual void finish() = 0;
  [[noreturn]] virtual void abort(int code) = 0;  // ends the processes of all ranks
};

inline constexpr std::int64_t kMostMpiElements = std::int64_t{1} << 30;  // MPI counts are int

// The plugin, loaded once per process. Null if it cannot be loaded; mpi_reason() then returns the reason.
Mpi* mpi_plugin();
std::string mpi_reason();

// The communicator "mpi" over the ranks of the process group. Error(usage) if MPI cannot be used, or if MPI's rank or
// size differs from the process group's.
std::unique_ptr<Wire> make_mpi_wire(const Rendezvous& rendezvous);

}  // namespace dp::kernels
