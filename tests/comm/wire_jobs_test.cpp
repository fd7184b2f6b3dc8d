// What a communicator passes to its wire, how running calls are halted, and the communication thread.
#include <sched.h>

#include <algorithm>

#include "host/rank_group.h"
#include "kernels/comm/wire_communicator.h"
#include "kernels/device/host/cores.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

// The wire of rank 0 of two. It records its calls and transfers nothing.
class RecordingWire final : public Wire {
 public:
  struct Record {
    std::vector<WireJob> jobs;
    std::vector<int> cores;  // on which the communication thread may run
  };
  explicit RecordingWire(Record& record) : record_(record) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "recorded"; }
  void run(const WireJob& job, const Halt&) override {
    record_.jobs.push_back(job);
    cpu_set_t set;
    CPU_ZERO(&set);
    record_.cores.clear();
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) record_.cores.push_back(core);
  }

 private:
  Record& record_;
};

// A wire whose calls end only when they are halted, and some time later.
class BlockedWire final : public Wire {
 public:
  struct State {
    std::atomic<bool> inside{false}, left{false};
    void wait_until_inside() const {
      while (!inside) std::this_thread::yield();
    }
  };
  explicit BlockedWire(State& state) : state_(state) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string name() const override { return "blocked"; }
  void run(const WireJob&, const Halt& halt) override {
    state_.inside = true;
    while (!halt.asked()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    state_.left = true;
    throw Aborted();
  }

 private:
  State& state_;
};

}  // namespace

TEST_CASE("wire: every call has its number, its description and its memory") {
  BareContext context;
  RecordingWire::Record record;
  WireCommunicator comm(std::make_unique<RecordingWire>(record), context);
  CHECK(comm.name() == "recorded");
  CHECK(comm.rank() == 0);
  CHECK(comm.size() == 2);
  const auto stream = context.make_stream();
  char data[8] = {}, part[8] = {};
  const std::vector<std::size_t> some{3, 4}, one{0, 9};
  const auto hash = [](const std::vector<std::size_t>& bytes) {
    return hash_part(hash_part(kEmptyPartsHash, bytes[0]), bytes[1]);
  };
  comm.set_summands(2, 50);
  comm.broadcast(data, 10, DType::f32, 1, *stream);
  comm.reduce(data, 11, DType::f64, 1, *stream);
  comm.all_reduce(data, 12, DType::bf16, *stream);
  comm.reduce_scatter(data, 13, DType::f32, *stream);
  comm.all_gather(data, 14, DType::f32, *stream);
  comm.all_gather_parts(data, 0, *stream);  // no call
  comm.all_gather_parts(data, 15, *stream);
  comm.gather(part, data, some, 1, *stream);
  comm.scatter(data, part, one, 0, *stream);
  comm.broadcast(data, 0, DType::f32, 0, *stream);
  stream->synchronize();
  const CollectiveCall expected[] = {
      {Collective::broadcast, DType::f32, 1, 10, 0, 1},     {Collective::reduce, DType::f64, 1, 11, 0, 2},
      {Collective::all_reduce, DType::bf16, 0, 12, 0, 2},   {Collective::reduce_scatter, DType::f32, 0, 13, 0, 2},
      {Collective::all_gather, DType::f32, 0, 14, 0, 1},    {Collective::all_gather_parts, DType::u8, 0, 30, 0, 1},
      {Collective::gather, DType::u8, 1, 7, hash(some), 1}, {Collective::scatter, DType::u8, 0, 9, hash(one), 1},
      {Collective::broadcast, DType::f32, 0, 0, 0, 1}};
  REQUIRE(record.jobs.size() == std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const WireJob& job = record.jobs[i];
    INFO("call " << i << ": " << to_string(job.call));
    CHECK(job.number == i);
    CHECK(job.call == expected[i]);
    CHECK(job.data == data);
    const bool has_part = job.call.kind == Collective::gather || job.call.kind == Collective::scatter;
    CHECK(job.part == (has_part ? part : nullptr));
    if (has_part) CHECK(job.bytes == (job.call.kind == Collective::gather ? some : one));
    CHECK(job.stride == 50);
  }
}

TEST_CASE("wire: invalid calls are rejected with the communicator and what is allowed, and are not passed on") {
  BareContext context;
  RecordingWire::Record record;
  WireCommunicator comm(std::make_unique<RecordingWire>(record), context);
  const auto stream = context.make_stream();
  char data[8] = {};
  const std::vector<std::size_t> two{1, 1}, three{1, 1, 1};
  const auto no_root = [](int root) {
    return "rank " + std::to_string(root) +
           " is not one of the 2 ranks of communicator recorded; name a root from 0 to 1";
  };
  for (const int root : {-1, 2}) {
    CHECK(refusal_of([&] { comm.broadcast(data, 1, DType::f32, root, *stream); }) == no_root(root));
    CHECK(refusal_of([&] { comm.reduce(data, 1, DType::f32, root, *stream); }) == no_root(root));
    CHECK(refusal_of([&] { comm.gather(data, data, two, root, *stream); }) == no_root(root));
    CHECK(refusal_of([&] { comm.scatter(data, data, two, root, *stream); }) == no_root(root));
  }
  const std::string begin = "communicator recorded supports 0 or more elements of float32, float64 or bfloat16, not ";
  for (const DType type : {DType::u8, DType::i32, DType::i64, DType::f16})
    CHECK(refusal_of([&] { comm.all_reduce(data, 4, type, *stream); }) == begin + "4 of " + dp::to_string(type));
  CHECK(refusal_of([&] { comm.all_gather(data, -1, DType::f32, *stream); }) == begin + "-1 of float32");
  const std::string sizes = "gather and scatter over 2 ranks need as many sizes, not 3";
  CHECK(refusal_of([&] { comm.gather(data, data, three, 0, *stream); }) == sizes);
  CHECK(refusal_of([&] { comm.scatter(data, data, three, 0, *stream); }) == sizes);
  stream->synchronize();
  CHECK(record.jobs.empty());
}

TEST_CASE("wire: a failure of other work halts the running call, and is reported afterwards") {
  BareContext context;
  BlockedWire::State state;
  WireCommunicator comm(std::make_unique<BlockedWire>(state), context);
  const auto stream = context.make_stream(), other = context.make_stream();
  float data = 0;
  comm.all_reduce(&data, 1, DType::f32, *stream);
  state.wait_until_inside();
  CHECK_FALSE(state.left);
  LambdaOp bad([] { throw Error(ErrorCode::data, "planted"); });
  CHECK_THROWS_WITH(bad.run(*other, {}, nullptr), "planted");
  CHECK(state.left);
  CHECK_THROWS_WITH(stream->synchronize(), "planted");
}

TEST_CASE("wire: a failure before the first call needs no wait") {
  BareContext context;
  BlockedWire::State state;
  WireCommunicator comm(std::make_unique<BlockedWire>(state), context);
  const auto stream = context.make_stream();
  LambdaOp bad([] { throw Error(ErrorCode::data, "planted"); });
  CHECK_THROWS_WITH(bad.run(*stream, {}, nullptr), "planted");
  float data = 0;
  CHECK_THROWS_WITH(comm.all_reduce(&data, 1, DType::f32, *stream), "planted");
  CHECK_FALSE(state.inside);
}

TEST_CASE("wire: a handle that is destroyed ends its running call") {
  BareContext context;
  BlockedWire::State state;
  auto comm = std::make_unique<WireCommunicator>(std::make_unique<BlockedWire>(state), context);
  const auto stream = context.make_stream();
  float data = 0;
  comm->all_reduce(&data, 1, DType::f32, *stream);
  state.wait_until_inside();
  comm.reset();
  CHECK(state.left);
}

TEST_CASE("wire: the communication thread may use every core, even if a pinned thread made it") {
  if (usable_cores().size() < 2) DP_SKIP("one core only");
  RecordingWire::Record record;
  std::thread([&] {
    pin_current_thread(usable_cores().front());
    BareContext context;
    WireCommunicator comm(std::make_unique<RecordingWire>(record), context);
    const auto stream = context.make_stream();
    float data = 0;
    comm.all_reduce(&data, 1, DType::f32, *stream);
    stream->synchronize();
  }).join();
  std::vector<int> usable = usable_cores();
  std::sort(usable.begin(), usable.end());
  CHECK(record.cores == usable);
}
