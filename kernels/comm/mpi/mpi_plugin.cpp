#include "kernels/comm/mpi/mpi_plugin.h"

#include "kernels/device/plugin_file.h"

namespace dp::kernels {
namespace {

const PluginFile& loaded() {
  static const PluginFile plugin = load_plugin_file("libdp_mpi.so", "dp_mpi_plugin", "MPI plugin");
  return plugin;
}

}  // namespace

Mpi* mpi_plugin() { return static_cast<Mpi*>(loaded().interface); }

std::string mpi_reason() { return loaded().reason; }

std::unique_ptr<Wire> make_mpi_wire(const Rendezvous& rendezvous) {
  Mpi* const mpi = mpi_plugin();
  if (mpi == nullptr)
    throw Error(ErrorCode::usage, "communicator mpi cannot be used: " + mpi_reason() + "; use --comm host on one host");
  mpi->start();
  if (mpi->rank() != rendezvous.rank() || mpi->size() != rendezvous.size())
    throw Error(ErrorCode::usage, "communicator mpi: the MPI rank of this process is " + std::to_string(mpi->rank()) +
                                      " of " + std::to_string(mpi->size()) + ", but its rank is " +
                                      std::to_string(rendezvous.rank()) + " of " + std::to_string(rendezvous.size()) +
                                      "; start the ranks with mpirun, or use another communicator");
  return mpi->make_wire(kMostMpiElements);
}

}  // namespace dp::kernels
