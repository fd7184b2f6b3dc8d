// Tests one rank of a process group. The test acts as rank 0, so it sees every message of the rank. While the fake time
// does not advance, no time limit ends the rank.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <utility>

#include "dp/error.h"
#include "engine/process_group/process_group_state.h"
#include "process_group/group_ranks.h"
#include "process_group/peer.h"
#include "support/fake_time.h"
#include "support/free_port.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;
using process_group::Failure;
using process_group::Hello;
using process_group::Kind;

namespace {

std::string own_host_name() {
  std::array<char, 256> name{};
  REQUIRE(::gethostname(name.data(), name.size() - 1) == 0);
  return name.data();
}

std::string welcome_of(int size) {
  std::vector<std::string> hellos;
  for (int rank = 0; rank < size; ++rank) hellos.push_back(to_text(Hello{"", rank, size, "host", "name"}));
  return process_group::join(hellos);
}

// Rank 1 of 2, and the end of its connection that rank 0 would have.
struct Member {
  explicit Member(double timeout_seconds = kNever) : rank_0(join(timeout_seconds)) {}

  GroupAddress address;
  std::shared_ptr<ProcessGroup> group;
  Peer rank_0;

 private:
  Peer join(double timeout_seconds) {
    std::thread joining([&] { group = ProcessGroup::join(address.options(1, 2, timeout_seconds)); });
    Peer peer(address.accepted());
    peer.next(Kind::hello);
    peer.send({Kind::welcome, 0, welcome_of(2)});
    joining.join();
    return peer;
  }
};

struct Refusal {
  ErrorCode code = ErrorCode::usage;
  std::string text;
};

Refusal refusal_of(const ProcessGroupOptions& options) {
  try {
    ProcessGroup::join(options);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

// Why rank 1 of 2 does not join if rank 0 sends this message.
Refusal refusal_after(const process_group::Message& message) {
  TimeOfWaits time;
  GroupAddress address;
  Refusal refusal;
  std::thread joining([&] { refusal = refusal_of(address.options(1, 2)); });
  Peer rank_0(address.accepted());
  rank_0.next(Kind::hello);
  rank_0.send(message);
  joining.join();
  return refusal;
}

}  // namespace

TEST_CASE("member: a rank sends hello, counts the ranks on its host, and sends bye") {
  TimeOfWaits time;
  GroupAddress address;
  std::shared_ptr<ProcessGroup> group;
  std::thread joining([&] { group = ProcessGroup::join(address.options(2, 5, 77)); });
  Peer rank_0(address.accepted());
  const auto first = rank_0.next();
  REQUIRE(first);
  CHECK(first->kind == Kind::hello);
  const Hello hello = process_group::parse_hello(first->body);
  CHECK(hello.token == "the secret");
  CHECK(hello.rank == 2);
  CHECK(hello.size == 5);
  CHECK(hello.name == own_host_name());
  CHECK_THAT(hello.host, Catch::Contains("pid:[") && Catch::Contains("net:["));
  const std::string hosts[] = {"other", hello.host, hello.host, "third", hello.host};
  std::vector<std::string> all;
  for (int rank = 0; rank < 5; ++rank)
    all.push_back(to_text(Hello{"", rank, 5, hosts[rank], "name " + std::to_string(rank)}));
  rank_0.send({Kind::welcome, 0, process_group::join(all)});
  joining.join();
  CHECK(group->rank() == 2);
  CHECK(group->size() == 5);
  CHECK_FALSE(group->leads());
  CHECK(group->local_rank() == 1);
  CHECK(group->local_size() == 3);
  CHECK_FALSE(group->one_host());
  CHECK(group->state().timeout_seconds() == 77);
  for (int rank = 0; rank < 5; ++rank) CHECK(group->host_of(rank) == "name " + std::to_string(rank));
  CHECK_THROWS(group->host_of(5));
  group.reset();
  const auto last = rank_0.next();
  REQUIRE(last);
  CHECK(last->kind == Kind::bye);
  CHECK_FALSE(rank_0.next());
  CHECK(rank_0.has_ended());
}

TEST_CASE("member: a rank sends its parts by number and returns the exchange that it waits for") {
  TimeOfWaits time;
  Member member;
  const std::uint64_t first = member.group->state().give("one"), second = member.group->state().give("two");
  for (const auto& [number, text] : {std::pair(std::uint64_t{0}, "one"), std::pair(std::uint64_t{1}, "two")}) {
    const auto part = member.rank_0.next();
    REQUIRE(part);
    CHECK(part->kind == Kind::give);
    CHECK(part->number == number);
    CHECK(part->body == text);
  }
  member.rank_0.send({Kind::everyone, 1, process_group::join({"c", "d"})});
  member.rank_0.send({Kind::everyone, 0, process_group::join({"a", "b"})});
  CHECK(member.group->state().wait(first) == std::vector<std::string>{"a", "b"});
  CHECK(member.group->state().wait(second) == std::vector<std::string>{"c", "d"});
}

TEST_CASE("member: a rank reports when it is busy, answers roll calls, and names the silent ranks") {
  TimeOfWaits time;
  Member member;
  const auto received = [&](Kind kind, std::uint64_t number) {
    const auto message = member.rank_0.next();
    REQUIRE(message);
    CHECK(message->kind == kind);
    CHECK(message->number == number);
  };
  member.group->busy(true);
  received(Kind::busy, 1);
  member.group->busy(false);
  received(Kind::busy, 0);
  member.rank_0.send({Kind::roll, 7});
  received(Kind::here, 7);
  std::vector<int> silent;
  std::thread asking([&] { silent = member.group->state().silent_ranks(); });
  received(Kind::roll, 0);
  member.rank_0.send({Kind::silent, 0, process_group::join({"3", "12"})});
  asking.join();
  CHECK(silent == std::vector{3, 12});
  std::atomic<bool> ended{false};
  std::thread again([&] {
    silent = member.group->state().silent_ranks();
    ended = true;
  });
  time.pass(1, [&] { return ended.load(); });  // rank 0 does not answer
  again.join();
  CHECK(silent == std::vector{0});
}

TEST_CASE("member: a rank ends its wait if rank 0 sends only roll calls") {
  TimeOfWaits time;
  Member member(0.5);
  std::atomic<bool> ended{false};
  std::string failure;
  std::thread exchanging([&] {
    try {
      member.group->exchange("x");
    } catch (const Error& error) {
      failure = error.what();
    }
    ended = true;
  });
  std::uint64_t calls = 0;
  for (; !ended && calls < 12; ++calls) {
    member.rank_0.send({Kind::roll, calls});
    CHECK(member.rank_0.next(Kind::here));
    time.pass(1, [&] { return ended.load(); });
  }
  if (!ended) member.rank_0.send({Kind::everyone, 0, process_group::join({"", "x"})});
  exchanging.join();
  CHECK(calls == 4);
  CHECK(failure == "rank 0 failed: it sent nothing for 4 s");
  CHECK(member.rank_0.next(Kind::fail));
}

TEST_CASE("member: a rank that can no longer receive reports that to the others") {
  TimeOfWaits time;
  Member member;
  member.rank_0.stop_sending();
  const std::string why = "rank 1 lost its connection to rank 0 (was rank 0 killed?)";
  CHECK_THROWS_WITH(member.group->exchange(""), why);
  const auto report = member.rank_0.next(Kind::fail);
  REQUIRE(report);
  CHECK(to_sentence(process_group::parse_failure(report->body)) == why);
}

TEST_CASE("member: a failure of another rank raises the attached flags, now and later, and ends every wait") {
  TimeOfWaits time;
  kernels::AbortFlag attached{false}, detached{false}, late{false};
  Member member;
  ProcessGroup::State& state = member.group->state();
  state.attach(&attached);
  state.attach(&detached);
  state.detach(&detached);
  CHECK_FALSE(member.group->failure());
  CHECK_FALSE(attached);
  member.rank_0.send({Kind::fail, 0, to_text(Failure{0, Error(ErrorCode::data, "a bad file")})});
  member.rank_0.send({Kind::fail, 0, to_text(Failure{0, Error(ErrorCode::io, "a later failure")})});
  try {
    member.group->exchange("x");
    FAIL("returned");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::data);
    CHECK(std::string(error.what()) == "rank 0 failed: a bad file");
  }
  const auto failure = member.group->failure();
  REQUIRE(failure);
  CHECK(failure->code() == ErrorCode::data);
  CHECK(std::string(failure->what()) == "rank 0 failed: a bad file");
  CHECK(attached);
  CHECK_FALSE(detached);
  state.attach(&late);
  CHECK(late);
  // Nothing is sent after a failure but the last message.
  CHECK(state.silent_ranks().empty());
  member.group->busy(true);
  member.group->fail(Error(ErrorCode::io, "a consequence"));
  for (kernels::AbortFlag* flag : {&attached, &late}) state.detach(flag);
  member.group.reset();
  REQUIRE(member.rank_0.next(Kind::give));
  const auto last = member.rank_0.next();
  REQUIRE(last);
  CHECK(last->kind == Kind::bye);
}

TEST_CASE("member: a rank that fails reports its error, which is no failure of another rank") {
  TimeOfWaits time;
  Member member;
  member.group->fail(Error(ErrorCode::io, "the disk is full"));
  const auto report = member.rank_0.next();
  REQUIRE(report);
  CHECK(report->kind == Kind::fail);
  const Failure failure = process_group::parse_failure(report->body);
  CHECK(failure.rank == 1);
  CHECK(failure.error.code() == ErrorCode::io);
  CHECK(std::string(failure.error.what()) == "the disk is full");
  member.rank_0.send(*report);
  CHECK_THROWS_WITH(member.group->exchange(""), "rank 1 failed: the disk is full");
  CHECK_FALSE(member.group->failure());
}

TEST_CASE("member: a group of one rank needs no messages") {
  const auto group = ProcessGroup::join({});
  CHECK(group->leads());
  CHECK(group->size() == 1);
  CHECK(group->local_rank() == 0);
  CHECK(group->local_size() == 1);
  CHECK(group->one_host());
  CHECK(group->host_of(0) == own_host_name());
  CHECK_FALSE(group->agree(true));
  CHECK(group->agree(false));
  CHECK_FALSE(group->agree(false));
  group->busy(true);
  group->fail(Error(ErrorCode::data, "nobody is told"));
  CHECK_FALSE(group->failure());
  CHECK(group->state().silent_ranks().empty());
  const std::string longest(65536, 'x');
  CHECK(group->exchange(longest) == std::vector<std::string>{longest});
  try {
    group->exchange(longest + "x");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(std::string(error.what()) == "65537 bytes exceed the limit of an exchange");
  }
}

TEST_CASE("member: ranks outside the group are rejected") {
  for (const auto& [rank, size] : {std::pair(-1, 2), std::pair(2, 2), std::pair(0, 0), std::pair(0, -1)}) {
    ProcessGroupOptions options;
    options.rank = rank;
    options.size = size;
    const Refusal refusal = refusal_of(options);
    CHECK(refusal.code == ErrorCode::usage);
    CHECK(refusal.text ==
          "rank " + std::to_string(rank) + " of " + std::to_string(size) + " does not exist; ranks count from 0");
  }
}

TEST_CASE("member: a rank that cannot join reports rank 0's reason") {
  const Refusal refused = refusal_after({Kind::refused, 0, "no such rank"});
  CHECK(refused.code == ErrorCode::usage);
  CHECK(refused.text == "rank 1 of 2 could not join: no such rank");
  const Refusal failed = refusal_after({Kind::fail, 0, to_text(Failure{0, Error(ErrorCode::io, "no space")})});
  CHECK(failed.code == ErrorCode::io);
  CHECK(failed.text == "rank 1 of 2 could not join: rank 0 failed: no space");
  const std::string hello = to_text(Hello{"", 0, 2, "", ""});
  const process_group::Message invalid[] = {{Kind::hello, 0, hello},
                                            {Kind::give},
                                            {Kind::here},
                                            {Kind::bye},
                                            {Kind::welcome},
                                            {Kind::welcome, 0, welcome_of(1)},
                                            {Kind::welcome, 0, welcome_of(3)},
                                            {Kind::welcome, 0, "not a list"},
                                            {Kind::fail, 0, "torn"},
                                            {Kind::silent, 0, process_group::join({"x"})}};
  for (const process_group::Message& message : invalid) {
    INFO("kind " << static_cast<int>(message.kind) << ", " << message.body.size() << " bytes");
    const Refusal refusal = refusal_after(message);
    CHECK(refusal.code == ErrorCode::device);
    CHECK_THAT(refusal.text, Catch::StartsWith("rank 1 of 2 could not join: what listens at 127.0.0.1:") &&
                                 Catch::Contains(" sent what no rank 0 sends: "));
  }
}

TEST_CASE("member: a rank whose connection is dropped before an answer connects again") {
  GroupAddress address;
  std::shared_ptr<ProcessGroup> group;
  std::thread joining([&] { group = ProcessGroup::join(address.options(1, 2)); });
  for (int drop = 0; drop < 3; ++drop) CHECK(Peer(address.accepted()).next(Kind::hello));
  Peer rank_0(address.accepted());
  CHECK(rank_0.next(Kind::hello));
  rank_0.send({Kind::accepted});
  rank_0.send({Kind::welcome, 0, welcome_of(2)});
  joining.join();
  CHECK(group->size() == 2);
}

TEST_CASE("member: a rank tries to reach rank 0 until its timeout and then reports the address and the reason") {
  ProcessGroupOptions options;
  options.rank = 1;
  options.size = 2;
  options.port = std::stoi(free_port());
  options.timeout_seconds = 0.5;
  const std::string text = "rank 1 of 2: rank 0 does not answer at 127.0.0.1:" + std::to_string(options.port) +
                           ": Connection refused; check that rank 0 was started, and check the master address and port";
  const auto begin = std::chrono::steady_clock::now();
  const Refusal refusal = refusal_of(options);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(490));
  CHECK(refusal.code == ErrorCode::timeout);
  CHECK(refusal.text == text);
  const std::atomic<int> stop{SIGTERM};
  options.stop = &stop;
  options.timeout_seconds = kNever;
  const Refusal interrupted = refusal_of(options);
  CHECK(in_time(begin, 2));
  CHECK(interrupted.code == ErrorCode::timeout);
  CHECK(interrupted.text == text);
}

TEST_CASE("member: an interrupt while ranks are missing is the reason that is reported") {
  GroupAddress address;
  const std::atomic<int> stop{SIGTERM};
  ProcessGroupOptions options = address.options(1, 2);
  options.stop = &stop;
  const Refusal interrupted = refusal_of(options);
  CHECK(interrupted.code == ErrorCode::timeout);
  CHECK(interrupted.text == "rank 1 of 2 could not join: interrupted while ranks were missing");
}

TEST_CASE("member: rank 0 may be started last, and opens its port itself") {
  ProcessGroupOptions options;
  options.size = 2;
  options.port = std::stoi(free_port());
  std::shared_ptr<ProcessGroup> first, second;
  std::thread joining([&] {
    ProcessGroupOptions own = options;
    own.rank = 1;
    second = ProcessGroup::join(own);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  first = ProcessGroup::join(options);
  joining.join();
  std::vector<std::string> seen;
  std::thread exchanging([&] { seen = second->exchange("b"); });
  CHECK(first->exchange("a") == std::vector<std::string>{"a", "b"});
  exchanging.join();
  CHECK(seen == std::vector<std::string>{"a", "b"});
  second.reset();  // rank 0 waits for the other ranks
}
