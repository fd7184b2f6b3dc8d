#include "host/rank_group.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

void run(HostOp& op, Stream& stream) { op.run(stream, {}, nullptr); }

}  // namespace

TEST_CASE("an exception of inline work is thrown by the call that ran it and by every later call") {
  BareContext context;
  const auto compute = context.make_stream(), comm = context.make_stream();
  const auto event = context.make_event();
  int runs = 0;
  LambdaOp bad([] { throw Error(ErrorCode::data, "planted"); }), good([&] { ++runs; });
  std::atomic<bool> open{false};
  wait_for(*comm, open);
  run(bad, *comm);
  run(good, *comm);
  comm->record(*event);
  compute->wait(*event);
  open = true;
  CHECK_THROWS_WITH(run(good, *compute), "planted");
  CHECK_THROWS_WITH(run(good, *comm), "planted");
  CHECK_THROWS_WITH(compute->synchronize(), "planted");
  CHECK_THROWS_WITH(context.flush(), "planted");
  CHECK(runs == 0);

  BareContext direct;
  const auto stream = direct.make_stream();
  CHECK_THROWS_WITH(run(bad, *stream), "planted");
  CHECK_THROWS_WITH(run(good, *stream), "planted");
}

TEST_CASE("the first exception on a stream's thread is thrown by every later call") {
  ContextOptions options;
  options.threaded_streams = true;
  BareContext context(options);
  const auto first = context.make_stream(), second = context.make_stream();
  const auto event = context.make_event();
  std::atomic<int> runs{0};
  LambdaOp bad([] { throw Error(ErrorCode::data, "planted"); }), worse([] { throw Error(ErrorCode::io, "second"); });
  LambdaOp good([&] { ++runs; });
  std::atomic<bool> open{false};
  wait_for(*first, open);
  run(bad, *first);
  run(worse, *first);
  run(good, *first);
  first->record(*event);
  open = true;
  CHECK_THROWS_WITH(first->synchronize(), "planted");
  CHECK_THROWS_WITH(second->wait(*event), "planted");
  CHECK_THROWS_WITH(run(good, *second), "planted");
  CHECK_THROWS_WITH(context.flush(), "planted");
  CHECK(runs == 0);
}

TEST_CASE("work that depends on a failure of another stream never runs") {
  ContextOptions options;
  options.threaded_streams = true;
  for (options.delay_seed = 0; options.delay_seed < 20; ++options.delay_seed) {
    BareContext context(options);
    const auto first = context.make_stream(), second = context.make_stream();
    const auto event = context.make_event();
    std::atomic<int> runs{0};
    std::atomic<bool> open{false};
    LambdaOp bad([] { throw Error(ErrorCode::data, "planted"); }), good([&] { ++runs; });
    wait_for(*first, open);
    run(bad, *first);
    first->record(*event);
    second->wait(*event);
    run(good, *second);
    open = true;
    CHECK_THROWS_WITH(second->synchronize(), "planted");
    CHECK(runs == 0);
  }
}

TEST_CASE("raising the abort flag ends a wait") {
  const bool threaded = GENERATE(false, true);
  AbortFlag abort{false};
  ContextOptions options;
  options.threaded_streams = threaded;
  options.abort = &abort;
  BareContext context(options);
  const auto stream = context.make_stream(), other = context.make_stream();
  const std::atomic<bool> never{false};
  int runs = 0;
  LambdaOp good([&] { ++runs; });
  wait_for(*stream, never);
  run(good, *stream);
  const auto start = std::chrono::steady_clock::now();
  const Later later(abort);
  CHECK_THROWS_AS(stream->synchronize(), Aborted);
  CHECK_THROWS_AS(other->synchronize(), Aborted);
  CHECK_THROWS_AS(context.flush(), Aborted);
  CHECK(runs == 0);
  CHECK(in_time(start, 1));
}

TEST_CASE("the abort flag ends a wait for a full queue") {
  const bool threaded = GENERATE(false, true);
  AbortFlag abort{false};
  ContextOptions options;
  options.threaded_streams = threaded;
  options.abort = &abort;
  BareContext context(options);
  const auto stream = context.make_stream();
  const std::atomic<bool> never{false};
  wait_for(*stream, never);
  LambdaOp good([] {});
  const Later later(abort);
  CHECK_THROWS_AS(
      [&] {
        for (int i = 0; i < 1000; ++i) run(good, *stream);
        stream->synchronize();
      }(),
      Aborted);
}

TEST_CASE("a stream destroyed with pending work drops it, and streams that wait for it report an error") {
  const bool threaded = GENERATE(false, true);
  ContextOptions options;
  options.threaded_streams = threaded;
  BareContext context(options);
  auto left = context.make_stream();
  const auto waiting = context.make_stream();
  const auto event = context.make_event();
  const std::atomic<bool> never{false};
  int runs = 0;
  LambdaOp good([&] { ++runs; });
  wait_for(*left, never);
  run(good, *left);
  left->record(*event);
  waiting->wait(*event);
  run(good, *waiting);
  left.reset();
  CHECK_THROWS_AS(waiting->synchronize(), Error);
  CHECK(runs == 0);
}
