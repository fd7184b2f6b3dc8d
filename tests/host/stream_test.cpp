#include "kernels/device/host/host_context.h"

#include <cstring>
#include <numeric>

#include "host/rank_group.h"
#include "kernels/op_args.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

ContextOptions delayed_mode(bool threaded, std::uint64_t seed = 1) {
  ContextOptions options;
  options.threaded_streams = threaded;
  options.delay_seed = seed;
  return options;
}

void run_on(HostOp& op, Stream& stream) { op.run(stream, {}, nullptr); }

}  // namespace

TEST_CASE("a stream runs its work in order, even if its queue overflows") {
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto stream = context.make_stream();
  std::vector<int> seen;
  seen.reserve(1000);
  LambdaOp op([&] { seen.push_back(static_cast<int>(seen.size())); });
  std::atomic<bool> open{false};
  const Later later(open);
  wait_for(*stream, open);
  const int source[] = {41, 42, 43};
  int target[3] = {};
  for (int i = 0; i < static_cast<int>(kQueuedTasks) + 44; ++i) {
    run_on(op, *stream);
    if (i < 3) stream->copy(&target[i], &source[i], sizeof(int));
  }
  stream->synchronize();
  REQUIRE(seen.size() == kQueuedTasks + 44);
  for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == static_cast<int>(i));
  CHECK(std::memcmp(source, target, sizeof source) == 0);
}

TEST_CASE("an op receives its arguments and workspace, and too many arguments are rejected") {
  class Sum final : public HostOp {
   public:
    void execute(std::span<void* const> args, void* workspace) override {
      for (void* const arg : args) *static_cast<int*>(workspace) += *static_cast<int*>(arg);
    }
  };
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto stream = context.make_stream();
  int values[kMaxOpArgs + 1], workspace = 0;
  std::iota(std::begin(values), std::end(values), 1);
  std::vector<void*> args;
  for (int& value : values) args.push_back(&value);
  Sum sum;
  CHECK_THROWS_AS(sum.run(*stream, args, &workspace), Error);
  args.pop_back();
  sum.run(*stream, args, &workspace);
  stream->synchronize();
  CHECK(workspace == kMaxOpArgs * (kMaxOpArgs + 1) / 2);
}

TEST_CASE("an upload reads its source before it returns, a copy when it runs") {
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto stream = context.make_stream();
  unsigned char uploaded[kMaxUploadBytes] = {}, copied[kMaxUploadBytes] = {}, source[kMaxUploadBytes];
  std::memset(source, 1, sizeof source);
  std::atomic<bool> open{false};
  wait_for(*stream, open);
  stream->upload(uploaded, source, sizeof source);
  stream->copy(copied, source, sizeof source);
  std::memset(source, 2, sizeof source);
  open = true;
  stream->synchronize();
  CHECK(std::count(std::begin(uploaded), std::end(uploaded), 1) == kMaxUploadBytes);
  CHECK(std::count(std::begin(copied), std::end(copied), 2) == kMaxUploadBytes);
  CHECK_THROWS_AS(stream->upload(uploaded, source, kMaxUploadBytes + 1), Error);
}

TEST_CASE("a download completes after all earlier work before it returns, and writes nothing if that work failed") {
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto stream = context.make_stream();
  int source = 1, changed = 2, seen = 0;
  stream->copy(&source, &changed, sizeof changed);
  stream->download(&seen, &source, sizeof seen);
  CHECK(seen == 2);
  LambdaOp fails([] { throw std::runtime_error("planted"); });
  changed = 3;
  const auto download_after_failure = [&] {
    run_on(fails, *stream);
    stream->copy(&source, &changed, sizeof changed);
    stream->download(&seen, &source, sizeof seen);
  };
  CHECK_THROWS_WITH(download_after_failure(), "planted");
  CHECK(seen == 2);
}

TEST_CASE("a wait delays later work until the latest record before it and no other") {
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto first = context.make_stream(), second = context.make_stream();
  const auto event = context.make_event();
  std::atomic<bool> open_one{false}, open_two{false}, open_three{false};
  int x = 0, y = 0;

  second->wait(*event);  // never recorded
  LambdaOp one([&] { x = 1; }), two([&] { x = 2; }), read([&] { y = x; });
  wait_for(*first, open_one);
  run_on(one, *first);
  first->record(*event);
  wait_for(*first, open_two);
  run_on(two, *first);
  first->record(*event);
  second->wait(*event);
  wait_for(*first, open_three);
  first->record(*event);  // after the wait: has no effect on it
  run_on(read, *second);
  first->wait(*event);  // its own event: no wait
  open_one = true;
  const Later later(open_two);
  second->synchronize();
  CHECK(y == 2);
  open_three = true;
  first->synchronize();
}

TEST_CASE("enqueued work proceeds during calls on other streams and in flush") {
  BareContext context;
  const auto compute = context.make_stream(), comm = context.make_stream();
  const auto gradient = context.make_event();
  std::atomic<bool> peer_ready{false};
  int reduced = 0, computed = 0;
  LambdaOp reduce([&] { ++reduced; }), layer([&] { ++computed; });
  run_on(layer, *compute);
  CHECK(computed == 1);  // runs immediately
  compute->record(*gradient);
  comm->wait(*gradient);
  wait_for(*comm, peer_ready);
  run_on(reduce, *comm);
  run_on(layer, *compute);
  CHECK(computed == 2);  // the other stream does not block it
  CHECK(reduced == 0);
  peer_ready = true;
  run_on(layer, *compute);
  CHECK(reduced == 1);

  peer_ready = false;
  wait_for(*comm, peer_ready);
  run_on(reduce, *comm);
  const Later later(peer_ready);
  context.flush();
  CHECK(reduced == 2);
}

TEST_CASE("the caller can wait for one event and query whether all work is done") {
  const bool threaded = GENERATE(false, true);
  BareContext context(delayed_mode(threaded));
  const auto first = context.make_stream(), second = context.make_stream();
  const auto event = context.make_event();
  std::atomic<bool> open{false}, open_more{false};
  int x = 0;
  LambdaOp write([&] { x = 1; });
  second->synchronize(*event);  // never recorded
  wait_for(*first, open);
  run_on(write, *first);
  first->record(*event);
  wait_for(*first, open_more);
  CHECK_FALSE(context.idle());
  const Later later(open);
  second->synchronize(*event);
  CHECK(x == 1);
  CHECK_FALSE(context.idle());
  open_more = true;
  first->synchronize();
  CHECK(context.idle() == !threaded);
}

TEST_CASE("a missing wait is visible in the threaded mode and fixed by the wait") {
  const auto late_reads = [](bool with_wait) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      BareContext context(delayed_mode(true, seed));
      const auto producer = context.make_stream(), consumer = context.make_stream();
      const auto ready = context.make_event();
      std::atomic<int> x{0};  // relaxed: only the streams order the accesses
      int y = 0;
      LambdaOp write([&] { x.store(1, std::memory_order_relaxed); });
      LambdaOp read([&] { y = x.load(std::memory_order_relaxed); });
      run_on(write, *producer);
      producer->record(*ready);
      if (with_wait) consumer->wait(*ready);
      run_on(read, *consumer);
      consumer->synchronize();
      wrong += y != 1;
      producer->synchronize();
    }
    return wrong;
  };
  CHECK(becomes([&] { return late_reads(false) > 0; }));  // unless this thread is slow each time
  CHECK(late_reads(true) == 0);
}

// CTest runs this in thread-sanitizer builds only. The sanitizer must report the race.
TEST_CASE("planted race", "[.planted_race]") {
  BareContext context(delayed_mode(true));
  const auto producer = context.make_stream(), consumer = context.make_stream();
  int x = 0, y = 0;
  LambdaOp write([&] { x = 1; }), read([&] { y = x; });
  for (int i = 0; i < 20; ++i) {
    run_on(write, *producer);
    run_on(read, *consumer);
  }
  producer->synchronize();
  consumer->synchronize();
  SUCCEED("y is " << y);
}

TEST_CASE("discrete_memory changes nothing but host_accessible") {
  ContextOptions options;
  CHECK(BareContext(options).host_accessible());
  options.discrete_memory = true;
  CHECK_FALSE(BareContext(options).host_accessible());
}
