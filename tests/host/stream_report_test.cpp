// What a context reports of its streams: times by label, progress, and the errors of invalid calls.
#include "host/rank_group.h"
#include "kernels/device/host/memory.h"
#include "kernels/op_args.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/refusal.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

TEST_CASE("the seconds of inline work are counted for its label until they are taken") {
  BareContext context;
  const auto first = context.make_stream(), second = context.make_stream();
  LambdaOp work([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  const auto begin = std::chrono::steady_clock::now();
  first->label(2);
  work.run(*first, {}, nullptr);
  second->label(kLabels - 1);
  work.run(*second, {}, nullptr);
  work.run(*second, {}, nullptr);
  const double all = seconds_since(begin);
  const LabelSeconds seconds = context.take_seconds();
  for (std::size_t label = 0; label < kLabels; ++label) {
    const double least = label == 2 ? 0.02 : label == kLabels - 1 ? 0.04 : 0;
    INFO("label " << label << ": " << seconds[label] << " s");
    CHECK(seconds[label] >= least);
    CHECK(seconds[label] <= (least > 0 ? all : 0));
  }
  CHECK(context.take_seconds() == LabelSeconds{});
}

TEST_CASE("the progress of a context counts finished work and names the work that waits for another replica") {
  BareContext context;
  const auto waiting = context.make_stream(), blocked = context.make_stream();
  const auto event = context.make_event();
  LambdaOp work([] {});
  CHECK(context.stream_progress().count == 0);
  CHECK_FALSE(context.stream_progress().waits);
  work.run(*waiting, {}, nullptr);
  work.run(*blocked, {}, nullptr);
  char byte = 0;
  blocked->copy(&byte, &byte, 1);  // nothing to do
  blocked->copy(&byte, nullptr, 0);
  CHECK(context.stream_progress().count == 2);
  std::atomic<bool> open{false};
  blocked->label(kLabels - 1);
  blocked->detail(300);
  wait_for(*blocked, open);
  blocked->record(*event);
  waiting->label(1);
  waiting->detail(1);
  waiting->wait(*event);  // waits for a stream of its own replica
  std::atomic<bool> seen{false};
  std::thread observer([&] {
    const auto begin = std::chrono::steady_clock::now();
    while (!context.stream_progress().waits && in_time(begin, 1)) std::this_thread::yield();
    const StreamProgress progress = context.stream_progress();
    seen = progress.count == 2 && progress.label == kLabels - 1 && progress.detail == 300;
    open = true;
  });
  waiting->synchronize();
  observer.join();
  CHECK(seen);
  CHECK(context.stream_progress().count == 4);
  CHECK_FALSE(context.stream_progress().waits);
}

TEST_CASE("invalid calls on a stream and unfinished work have their messages") {
  BareContext context;
  auto stream = context.make_stream();
  const auto other = context.make_stream();
  char data[kMaxUploadBytes + 1] = {};
  CHECK(refusal_of([&] { stream->upload(data, data, sizeof data); }) ==
        "an upload of 257 bytes exceeds the limit of 256; use a copy instead");
  LambdaOp work([] {});
  const std::vector<void*> args(kMaxOpArgs + 1, data);
  CHECK(refusal_of([&] { work.run(*stream, args, nullptr); }) ==
        "an op takes at most " + std::to_string(kMaxOpArgs) + " arguments, not " + std::to_string(kMaxOpArgs + 1));
  other->synchronize();  // neither call failed the context
  const std::atomic<bool> never{false};
  wait_for(*stream, never);
  stream.reset();
  CHECK(refusal_of([&] { other->synchronize(); }) == "a stream was destroyed before its work was done");
}

TEST_CASE("streams of a context without unfinished work can be destroyed") {
  const bool threaded = GENERATE(false, true);
  ContextOptions options;
  options.threaded_streams = threaded;
  BareContext context(options);
  auto stream = context.make_stream();
  LambdaOp work([] {});
  work.run(*stream, {}, nullptr);
  stream->synchronize();
  stream.reset();
  CHECK_NOTHROW(context.flush());
  CHECK(context.idle() == !threaded);
}

TEST_CASE("the options of a host context are checked and determine the memory for other replicas") {
  ContextOptions options;
  options.threads = 0;
  CHECK(refusal_of([&] { BareContext context(options); }) == "a replica needs at least one thread");
  options.threads = 2;
  options.cores = {0, 1, 2};
  CHECK(refusal_of([&] { BareContext context(options); }) ==
        "a replica of 2 threads cannot be pinned to 3 cores; give one core per thread");
  options = {};
  for (const bool peers : {false, true}) {
    options.peer_processes = peers;
    BareContext context(options);
    const auto memory = context.allocate_for_peers(1000), own = context.allocate(1000);
    CHECK(memory->bytes() == 1000);
    CHECK((find_shared(memory->data()).file >= 0) == peers);
    CHECK(find_shared(own->data()).file == -1);
    CHECK(context.options().peer_processes == peers);
  }
  for (const NormFusion fusion : {NormFusion::measured, NormFusion::never, NormFusion::always}) {
    options.norm_fusion = fusion;
    const BareContext context(options);
    CHECK(context.norm_fusion() == (fusion == NormFusion::always ? NormFusion::always : NormFusion::never));
  }
}
