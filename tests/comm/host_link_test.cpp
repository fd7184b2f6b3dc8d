// The link between two pipeline stages in host memory.
#include "kernels/comm/host_communicator.h"

#include <cstring>

#include "host/rank_group.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

TEST_CASE("host link: its memory belongs to the sender and only grows") {
  BareContext context;
  HostLink link(context);
  const auto held = [&] { return std::pair(link.held(Link::End::sender), link.held(Link::End::receiver)); };
  CHECK(held() == std::pair(std::size_t{0}, std::size_t{0}));
  link.reserve(100);
  CHECK(held() == std::pair(std::size_t{200}, std::size_t{0}));
  link.reserve(50);
  CHECK(held() == std::pair(std::size_t{200}, std::size_t{0}));
  link.reserve(101);
  CHECK(held() == std::pair(std::size_t{202}, std::size_t{0}));
}

TEST_CASE("host link: tensors arrive in order, a full queue delays the sender and an empty one the receiver") {
  BareContext sender, receiver;
  HostLink link(sender);
  link.reserve(sizeof(int) * 3);
  const auto sends = sender.make_stream(), receives = receiver.make_stream();
  int next_sent = 0, next_received = 0;
  for (int round = 0; round < 5; ++round) {
    int sent[3][3] = {};
    for (auto& tensor : sent)
      for (int& value : tensor) value = next_sent++;
    for (std::size_t i = 0; i < Link::kSlots; ++i) link.send(sent[i], sizeof sent[i], *sends);
    CHECK(sender.idle());
    link.send(sent[2], sizeof sent[2], *sends);
    CHECK_FALSE(sender.idle());  // the queue is full
    int got[4][3] = {};
    link.receive(got[0], sizeof got[0], *receives);
    CHECK(receiver.idle());
    sender.flush();
    CHECK(sender.idle());
    for (int i = 1; i < 4; ++i) link.receive(got[i], sizeof got[i], *receives);
    CHECK_FALSE(receiver.idle());  // three of four have been sent
    std::memset(sent, 0, sizeof sent);
    for (int i = 0; i < 3; ++i) sent[0][i] = next_sent++;
    link.send(sent[0], sizeof sent[0], *sends);
    std::memset(sent, 0, sizeof sent);  // the stream has passed it
    receiver.flush();
    for (const auto& tensor : got)
      for (const int value : tensor) CHECK(value == next_received++);
  }
}

TEST_CASE("host link: tensors without reserved memory and tensors of another size are errors") {
  float data[32] = {};
  {
    BareContext context;
    HostLink link(context);
    const auto stream = context.make_stream();
    CHECK_THROWS_WITH(link.send(data, 4, *stream), "a pipeline stage sends 4 bytes, for which no memory was reserved");
  }
  BareContext sender, receiver;
  HostLink link(sender);
  link.reserve(100);
  const auto sends = sender.make_stream(), receives = receiver.make_stream();
  link.send(data, 100, *sends);
  CHECK_THROWS_WITH(link.receive(data, 96, *receives),
                    "a pipeline stage expects 96 bytes, but its neighbour has sent 100");
  try {
    link.send(data, 101, *sends);
    FAIL("sent");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK(std::string(error.what()) == "a pipeline stage sends 101 bytes, for which no memory was reserved");
  }
}
