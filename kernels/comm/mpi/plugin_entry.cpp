// The MPI plugin. It exports one function, dp_mpi_plugin().
#include <cstring>

#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/comm/mpi/mpi_wire.h"

namespace dp::kernels::mpi {
namespace {

constexpr int kMostText = 64 * 1024;

class MpiLibrary final : public Mpi {
 public:
  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string all(text, static_cast<std::size_t>(length));
    return all.substr(0, all.find_first_of(",\n"));
  }

  void start() override {
    if (finished_)
      throw Error(ErrorCode::usage,
                  "MPI was finalized in this process and cannot be initialized again; start a new process");
    if (started_) return;
    int granted = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
    started_ = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (granted < MPI_THREAD_MULTIPLE)
      throw Error(ErrorCode::usage, version() + " does not support calls from several threads (level " +
                                        std::to_string(granted) +
                                        "), but communicators require MPI_THREAD_MULTIPLE; use a library that was "
                                        "built with it, or another communicator");
  }
  bool started() const override { return started_ && !finished_; }

  int rank() const override { return ask(MPI_Comm_rank); }
  int size() const override { return ask(MPI_Comm_size); }

  std::string broadcast(std::string_view from_rank_0) override {
    if (rank() == 0 && from_rank_0.size() > kMostText)
      throw Error(ErrorCode::usage, "a text of " + std::to_string(from_rank_0.size()) +
                                        " bytes is too long for a broadcast; the limit is 65536");
    int length = static_cast<int>(from_rank_0.size());
    check(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
    std::string text(from_rank_0);
    text.resize(static_cast<std::size_t>(length));
    check(MPI_Bcast(text.data(), length, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return text;
  }

  std::unique_ptr<Wire> make_wire(std::int64_t most) override { return mpi::make_wire(most); }

  void finish() override {
    if (started()) MPI_Finalize();
    finished_ = started_;
  }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  static int ask(int (*question)(MPI_Comm, int*)) {
    int answer = 0;
    check(question(MPI_COMM_WORLD, &answer), "MPI_Comm_rank or MPI_Comm_size");
    return answer;
  }
  bool started_ = false, finished_ = false;
};

}  // namespace
}  // namespace dp::kernels::mpi

extern "C" __attribute__((visibility("default"))) void* dp_mpi_plugin(const char* abi, const char** own_abi) {
  static dp::kernels::mpi::MpiLibrary library;
  *own_abi = DP_ABI_HASH;
  return std::strcmp(abi, DP_ABI_HASH) == 0 ? static_cast<dp::kernels::Mpi*>(&library) : nullptr;
}
