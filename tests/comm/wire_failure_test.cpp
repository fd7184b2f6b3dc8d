#include <filesystem>

#include "comm/wired_ranks.h"
#include "kernels/comm/wire_communicator.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

int threads_of_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// Rank r makes calls[r]. Returns each rank's error, or an empty string.
using CallOf = std::function<void(Communicator&, float*, Stream&)>;
std::vector<std::string> errors_of(const std::vector<CallOf>& calls) {
  WiredRankGroup group(static_cast<int>(calls.size()));
  std::vector<std::string> errors(calls.size());
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    std::vector<float> data(300000);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    try {
      comm->all_reduce(data.data(), 10, DType::f32, *stream);
      calls[me](*comm, data.data(), *stream);
      stream->synchronize();
    } catch (const Error& error) {
      errors[me] = std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
  });
  return errors;
}

CallOf all_reduce(std::int64_t count, DType type) {
  return [=](Communicator& comm, float* data, Stream& stream) { comm.all_reduce(data, count, type, stream); };
}
CallOf reduce(int root) {
  return [=](Communicator& comm, float* data, Stream& stream) { comm.reduce(data, 20, DType::f32, root, stream); };
}
CallOf gather(std::size_t first, std::size_t second) {
  return [=](Communicator& comm, float* data, Stream& stream) {
    const std::size_t bytes[] = {first, second};
    comm.gather(data, data + 50, bytes, 0, stream);
  };
}

}  // namespace

TEST_CASE("wire: ranks that make different calls fail with both calls named") {
  const auto both = [](const CallOf& first, const CallOf& second, const std::string& what) {
    for (const std::string& error : errors_of({first, second}))
      CHECK_THAT(error, Catch::StartsWith("2 communicator memory, call 1: rank") && Catch::Contains(what));
  };
  both(all_reduce(20, DType::f32), all_reduce(21, DType::f32), "all_reduce of 21 float32");
  both(all_reduce(20, DType::f32), all_reduce(20, DType::f64), "all_reduce of 20 float64");
  both(all_reduce(300000, DType::f32), reduce(1), "all_reduce of 300000");
  both(reduce(0), reduce(1), "with root 1");
  both(gather(8, 12), gather(12, 8), " bytes with root 0 in parts of other sizes");
  CHECK(errors_of({gather(8, 12), gather(8, 12)}) == std::vector<std::string>(2));
}

TEST_CASE("wire: every rank names the one of five that makes another call") {
  std::vector<CallOf> calls(5, all_reduce(300000, DType::f32));
  calls[3] = reduce(2);
  for (const std::string& error : errors_of(calls))
    CHECK_THAT(error, Catch::StartsWith("2 ") && Catch::Contains("rank 3 calls reduce of 20"));
}

TEST_CASE("wire: an abort ends every rank that waits for a missing one, and their memory stays untouched") {
  const bool threaded = GENERATE(false, true);
  for (const int size : {2, 4}) {
    ContextOptions options;
    options.threaded_streams = threaded;
    WiredRankGroup group(size, options);
    std::atomic<int> aborted{0};
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_WITH(group.run([&](int rank) {
      const auto me = static_cast<std::size_t>(rank);
      const auto comm = group.join(rank);
      std::vector<float> data(2000000, 1);  // destroyed before the handle
      const auto stream = group.contexts[me]->make_stream();
      try {
        comm->all_reduce(data.data(), 2000, DType::f32, *stream);
        stream->synchronize();
        if (rank == size - 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));  // late ranks are aborted in a later call
          throw std::runtime_error("planted");
        }
        comm->all_reduce(data.data(), 2000000, DType::f32, *stream);
        stream->synchronize();
      } catch (const Aborted&) {
        ++aborted;
        throw;
      }
    }),
                      "planted");
    CHECK(aborted == size - 1);
    CHECK(in_time(start, 1));
  }
}

TEST_CASE("wire: handles leave no thread behind") {
  const int before = threads_of_process();
  for (int i = 0; i < 5; ++i) {
    WiredRankGroup group(3);
    group.run([&](int rank) { group.join(rank); });
  }
  CHECK(becomes([&] { return threads_of_process() <= before; }));  // a joined thread may still be listed
}

namespace {

// Two ranks, on two hosts or on one.
class TwoRanks final : public Rendezvous {
 public:
  explicit TwoRanks(bool one_host) : one_host_(one_host) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int local_rank() const override { return 0; }
  int local_size() const override { return one_host_ ? 2 : 1; }
  bool one_host() const override { return one_host_; }
  double timeout_seconds() const override { return 1; }
  std::vector<std::string> exchange(std::string_view) override { throw Error(ErrorCode::usage, "not reached"); }

 private:
  const bool one_host_;
};

}  // namespace

TEST_CASE("a communicator that does not join processes, or not these, is rejected by name") {
  BareContext context;
  TwoRanks apart(false), together(true);
  CHECK_THROWS_WITH(join_from_host("p2p", context, apart),
                    "communicator 'p2p' cannot connect processes on reference; use --comm host or mpi");
  CHECK_THROWS_WITH(join_from_host("host", context, apart),
                    "communicator host connects only processes of one host that can see each other; start the ranks "
                    "with mpirun and --comm mpi");
  CHECK_THROWS_WITH(join_from_host("host", context, together),
                    "communicator host requires a context with shared memory");
  Context* const contexts[] = {&context};
  CHECK_THROWS_WITH(make_host_communicators("nccl", contexts),
                    "--comm nccl requires GPUs; use --comm host for CPU replicas");
}

TEST_CASE("ranks on one host share memory, and ranks on several hosts require mpirun") {
  const CommunicatorChoice choice = default_for(TwoRanks(true));
  CHECK(choice.name == "host");
  CHECK(choice.reason == "all ranks run on one host and share its memory");
  CHECK_THROWS_WITH(default_for(TwoRanks(false)),
                    "CPU ranks require MPI if they run on several hosts or cannot see each other's processes; start "
                    "them with mpirun");
}
