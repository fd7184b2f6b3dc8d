#include "comm/conformance.h"
#include "comm/wired_ranks.h"
#include "support/catch.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

ContextOptions mode(bool threaded) {
  ContextOptions options;
  options.threaded_streams = threaded;
  return options;
}

template <typename Body>
std::vector<std::string> on_all(WiredRankGroup& group, Body body) {
  std::vector<std::string> wrong(group.contexts.size());
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream();
    wrong[me] = body(*comm, *stream);
  });
  return wrong;
}

}  // namespace

TEST_CASE("wire: every collective reaches the wire with its arrays") {
  const int size = GENERATE(1, 2, 3, 5);
  WiredRankGroup group(size);
  CHECK(on_all(group, [](Communicator& comm, Stream& stream) { return check_everything(comm, stream, Sums::tree); }) ==
        std::vector<std::string>(static_cast<std::size_t>(size)));
}

TEST_CASE("wire: collectives work on delayed streams") {
  WiredRankGroup group(3, mode(true));
  CHECK(on_all(group, [](Communicator& comm, Stream& stream) {
          return check_collectives<float>(comm, stream, 100001, Sums::tree) + check_parts(comm, stream, 1);
        }) == std::vector<std::string>(3));
}

TEST_CASE("host: collectives between threads pass the tests of process communicators") {
  const int size = GENERATE(1, 2, 3, 5);
  RankGroup group(size);
  auto handles = group.communicators();
  std::vector<std::string> wrong(group.contexts.size());
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto stream = group.contexts[me]->make_stream();
    wrong[me] = check_everything(*handles[me], *stream, Sums::tree);
  });
  CHECK(wrong == std::vector<std::string>(static_cast<std::size_t>(size)));
}

TEST_CASE("wire: memory may be overwritten as soon as the stream has passed the call") {
  const bool threaded = GENERATE(false, true);
  WiredRankGroup group(3, mode(threaded));
  CHECK(on_all(group, [](Communicator& comm, Stream& stream) {
          std::vector<float> data(5000);
          int wrong = 0;
          LambdaOp refill([&] { std::fill(data.begin(), data.end(), static_cast<float>(comm.rank() + 1)); });
          LambdaOp check_broadcast([&] { wrong += data[0] != 2 || data[4999] != 2; });
          LambdaOp check_sum([&] { wrong += data[0] != 6 || data[4999] != 6; });
          for (int step = 0; step < 30; ++step) {
            refill.run(stream, {}, nullptr);
            comm.broadcast(data.data(), 5000, DType::f32, 1, stream);
            check_broadcast.run(stream, {}, nullptr);
            refill.run(stream, {}, nullptr);
            comm.reduce(data.data(), 5000, DType::f32, step % 3, stream);
            if (comm.rank() == step % 3) check_sum.run(stream, {}, nullptr);
            refill.run(stream, {}, nullptr);
            comm.all_reduce(data.data(), 5000, DType::f32, stream);
            check_sum.run(stream, {}, nullptr);
          }
          stream.synchronize();
          return wrong == 0 ? std::string() : std::to_string(wrong) + " wrong";
        }) == std::vector<std::string>(3));
}

TEST_CASE("wire: a call makes progress while another stream of the replica computes") {
  WiredRankGroup group(2);
  std::vector<double> sums(2);
  std::vector<char> ended(2);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto comm = group.join(rank);
    const auto stream = group.contexts[me]->make_stream(), other = group.contexts[me]->make_stream();
    std::vector<float> data(4000000, 1);
    comm->all_reduce(data.data(), 4000000, DType::f32, *stream);
    // The replica's thread sleeps on the other stream. It polls in between, but does no communication work.
    LambdaOp sleep([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    const auto begin = std::chrono::steady_clock::now();
    while (!group.contexts[me]->idle() && in_time(begin, 1)) sleep.run(*other, {}, nullptr);
    ended[me] = group.contexts[me]->idle();
    stream->synchronize();
    sums[me] = data[3999999];
  });
  CHECK(sums == std::vector<double>(2, 2));
  CHECK(ended == std::vector<char>(2, 1));
}

TEST_CASE("wire: two handles on two streams do not disturb each other") {
  WiredRankGroup group(4);
  std::vector<int> wrong(4, 0);
  group.run([&](int rank) {
    const auto me = static_cast<std::size_t>(rank);
    BareContext& context = *group.contexts[me];
    const auto gradients = group.join(rank), losses = group.join(rank);
    const auto compute = context.make_stream(), communication = context.make_stream();
    const auto ready = context.make_event(), reduced = context.make_event();
    std::vector<double> gradient(3000), loss(1);
    LambdaOp backward([&] { std::fill(gradient.begin(), gradient.end(), 1.0); });
    LambdaOp forward([&] { loss[0] = rank; });
    LambdaOp check([&] { wrong[me] += gradient[2999] != 4 || loss[0] != 6; });
    for (int step = 0; step < 40; ++step) {
      backward.run(*compute, {}, nullptr);
      compute->record(*ready);
      communication->wait(*ready);
      gradients->all_reduce(gradient.data(), 3000, DType::f64, *communication);
      communication->record(*reduced);
      forward.run(*compute, {}, nullptr);
      losses->all_reduce(loss.data(), 1, DType::f64, *compute);
      compute->wait(*reduced);
      check.run(*compute, {}, nullptr);
      if (step % 8 == rank) context.flush();
    }
    compute->synchronize();
    communication->synchronize();
  });
  CHECK(wrong == std::vector<int>(4, 0));
}
