// One rank of the tests of communicator "mpi", started by mpirun as `mpi_ranks <what>`. Exit status: 0 passed; 4
// skipped; 1 failed, with a line on stderr.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "comm/conformance.h"
#include "host/rank_group.h"
#include "kernels/comm/mpi/mpi_plugin.h"
#include "kernels/comm/wire_communicator.h"
#include "support/patience.h"

namespace dp::test {
namespace {

using namespace kernels;

class MpiRendezvous final : public Rendezvous {
 public:
  MpiRendezvous(int rank, int size, bool one_host = true) : rank_(rank), size_(size), one_host_(one_host) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  bool one_host() const override { return one_host_; }
  double timeout_seconds() const override { return 10; }
  std::vector<std::string> exchange(std::string_view) override {
    throw Error(ErrorCode::usage, "communicator mpi needs no exchange");
  }

 private:
  int rank_, size_;
  bool one_host_;
};

std::string conform(Communicator& comm, BareContext& context) {
  const auto stream = context.make_stream();
  return check_everything(comm, *stream, Sums::rounded);
}

std::string differ(Communicator& comm, BareContext& context) {
  const auto stream = context.make_stream();
  float data[30] = {};
  try {
    comm.all_reduce(data, comm.rank() == 1 ? 21 : 20, DType::f32, *stream);
    stream->synchronize();
  } catch (const Error& error) {
    const std::string text = error.what();
    return error.code() == ErrorCode::usage && text.find("all_reduce of 21 float32") != std::string::npos &&
                   text.find("rank 1") != std::string::npos
               ? ""
               : "told: " + text;
  }
  return "a call that differs was not found";
}

std::string bfloat16(Communicator& comm, BareContext& context) {
  const auto stream = context.make_stream();
  std::vector<BFloat16> data = summand_values<BFloat16>(comm.rank(), 20);
  comm.broadcast(data.data(), 20, DType::bf16, 1, *stream);
  stream->synchronize();
  if (!same_bits(data, summand_values<BFloat16>(1, 20))) return "a broadcast of bfloat16";
  try {
    comm.all_reduce(data.data(), 20, DType::bf16, *stream);
    stream->synchronize();
  } catch (const Error& error) {
    const std::string text = error.what();
    return error.code() == ErrorCode::usage && text.find("not bfloat16; use host") != std::string::npos
               ? ""
               : "told: " + text;
  }
  return "a sum of bfloat16 was not refused";
}

// The call must end while both replicas' threads are busy: each is until it finds the sums. The MPI library alone would
// make no progress.
std::string overlap(Communicator& comm, BareContext& context) {
  const auto stream = context.make_stream(), other = context.make_stream();
  const auto size = static_cast<float>(comm.size());
  std::vector<float> data(8000000, 1);
  comm.all_reduce(data.data(), 8000000, DType::f32, *stream);
  bool ended = false;
  LambdaOp busy([&] {
    ended = becomes(
        [&] { return std::atomic_ref(data.front()).load() == size && std::atomic_ref(data.back()).load() == size; });
  });
  busy.run(*other, {}, nullptr);
  stream->synchronize();
  if (data.front() != size || data.back() != size) return "a wrong sum";
  return ended ? "" : "the call stood still while another stream worked";
}

std::string aborted(Communicator& comm, BareContext& context, AbortFlag& abort) {
  const auto stream = context.make_stream();
  float data[30] = {};
  while (comm.rank() == 1) ::pause();  // makes no call; rank 0 ends this process
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    abort = true;
  });
  std::string wrong = "an abort did not end the call";
  try {
    comm.all_reduce(data, 20, DType::f32, *stream);
    stream->synchronize();
  } catch (const Aborted&) {
    wrong.clear();
  }
  later.join();
  return wrong;
}

std::string pieces(Mpi& mpi, BareContext& context) {
  WireCommunicator comm(mpi.make_wire(1000), context);
  const auto stream = context.make_stream();
  return check_collectives<float>(comm, *stream, 10007, Sums::rounded) + check_parts(comm, *stream, 0) +
         check_summands<float>(comm, *stream, 2, 3001, Sums::rounded);
}

int run(const std::string& what) {
  Mpi* const mpi = mpi_plugin();
  if (mpi == nullptr) {
    std::fprintf(stderr, "skipped: %s\n", mpi_reason().c_str());
    return 4;
  }
  mpi->start();
  mpi->start();
  std::string wrong;
  {
    ContextOptions options;
    AbortFlag abort{false};
    options.abort = &abort;
    BareContext context(options);
    MpiRendezvous rendezvous(mpi->rank(), mpi->size());
    const auto comm = join_from_host("mpi", context, rendezvous);
    if (what == "conform") wrong = conform(*comm, context);
    if (what == "differ") wrong = differ(*comm, context);
    if (what == "bfloat16") wrong = bfloat16(*comm, context);
    if (what == "overlap") wrong = overlap(*comm, context);
    if (what == "pieces") wrong = pieces(*mpi, context);
    if (what == "handout") {
      try {
        if (mpi->rank() == 0)
          mpi->broadcast(std::string(64 * 1024 + 1, 'x')), wrong = "a text beyond the limit was sent";
      } catch (const Error&) {
        // The text was refused before anything was sent.
      }
      if (mpi->broadcast(mpi->rank() == 0 ? "place and token" : "") != "place and token")
        wrong = "what rank 0 hands out did not arrive";
    }
    if (what == "world") {
      MpiRendezvous another(mpi->rank(), mpi->size() + 1);
      try {
        join_from_host("mpi", context, another);
        wrong = "a world that is not mpirun's was joined";
      } catch (const Error& error) {
        if (std::strstr(error.what(), "start the ranks with mpirun") == nullptr) wrong = error.what();
      }
      const CommunicatorChoice choice = default_for(MpiRendezvous(mpi->rank(), mpi->size(), /*one_host=*/false));
      if (choice.name != "mpi" || choice.reason != "the ranks run on several hosts and were started by MPI")
        wrong = "several hosts use " + choice.name + ": " + choice.reason;
      if (mpi->version().empty() || mpi->version().find_first_of(",\n") != std::string::npos)
        wrong = "the library is '" + mpi->version() + "'";
    }
    if (what == "die" && mpi->rank() == 1) _exit(9);
    if (what == "die") conform(*comm, context);
    if (what == "give_up" && mpi->rank() == 1) mpi->abort(7);
    if (what == "give_up") conform(*comm, context);
    if (what == "abort") {
      wrong = aborted(*comm, context, abort);
      std::puts(wrong.empty() ? "the call ended" : wrong.c_str());
      std::fflush(stdout);
      mpi->abort(1);  // a call is still inside MPI: no other MPI call is allowed
    }
  }
  if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", mpi->rank(), wrong.c_str());
  if (wrong.empty()) mpi->finish();
  if (what == "world" && wrong.empty()) {
    wrong = mpi->started() ? "MPI is still started" : "MPI was started again";
    try {
      mpi->start();
    } catch (const Error& error) {
      if (std::strstr(error.what(), "cannot be initialized again") != nullptr && !mpi->started()) wrong.clear();
    }
    if (!wrong.empty()) std::fprintf(stderr, "%s\n", wrong.c_str());
  }
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace dp::test

int main(int argc, char** argv) {
  try {
    return argc == 2 ? dp::test::run(argv[1]) : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
