// MPI as a library that is loaded at run time, so that one program runs with and without it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kernels/comm/wire.h"

namespace dp::kernels {

// The calls of one process. start() comes first but for version(); all ranks make the collective ones together.
class Mpi {
 public:
  virtual ~Mpi() = default;
  virtual std::string version() const = 0;  // the library's, one line
  // Does nothing the second time. Error(usage) when the library lets one thread call it at a time, or when finish() was called.
  virtual void start() = 0;
  virtual bool started() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string broadcast(std::string_view from_rank_0) = 0;  // collective; at most 64 KiB
  // Collective. A call of it asks the library for at most `most` elements at a time.
  virtual std::unique_ptr<Wire> make_wire(std::int64_t most) = 0;
  virtual void
  finish() = 0;  // collective; no wire is left by then. Does nothing when not started, and the second time.
  [[noreturn]] virtual void abort(int code) = 0;  // ends every rank's process
};

inline constexpr std::int64_t kMostMpiElements = std::int64_t{1} << 30;  // the library counts with int

// The plugin, loaded once for the whole process; null when there is none, then mpi_reason() says why.
Mpi* mpi_plugin();
std::string mpi_reason();

// The communicator "mpi" among the ranks of the world, which must be those that mpirun started. Error(usage).
std::unique_ptr<Wire> make_mpi_wire(const Rendezvous& rendezvous);

}  // namespace dp::kernels
