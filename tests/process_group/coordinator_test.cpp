// Tests the rendezvous server with connections in place of ranks, so that the test sees every message. While the fake
// time does not advance, no time limit ends a connection.
#include "engine/process_group/coordinator.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <map>
#include <memory>
#include <thread>

#include "process_group/group_ranks.h"
#include "process_group/peer.h"
#include "support/catch.h"
#include "support/fake_time.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;
using namespace dp::process_group;

namespace {

FileHandle listener_of(const GroupAddress& address) { return FileHandle(::dup(address.listener.get())); }

ProcessGroupOptions options_for(GroupAddress& address, int size, double timeout = kNever) {
  ProcessGroupOptions options = address.options(1, size, timeout);
  options.rank = 0;
  return options;
}

void all_welcomed(std::initializer_list<Peer*> peers) {
  for (Peer* peer : peers) REQUIRE(peer->next(Kind::welcome));
}

// Why rank 0 of two ranks rejects this rank.
std::string refusal(const GroupAddress& address, const Hello& hello) {
  Peer peer(address, hello);
  const auto answer = peer.next();
  if (!answer) return "no answer";
  CHECK(answer->kind == Kind::refused);
  CHECK(answer->number == 0);
  CHECK(peer.has_ended());
  return answer->body;
}

}  // namespace

TEST_CASE("coordinator: every reason to reject a rank has its message, and the connection then ends") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2));
  Peer first(address, 0, 2);
  const std::string begin = "rank 0 rejected this rank: ";
  for (const char* token : {"", "The secret", "the secreT", "the secret "}) {
    INFO("token '" << token << "'");
    CHECK(refusal(address, {token, 1, 2, "", ""}) ==
          begin +
              "its token differs from rank 0's; set DP_TOKEN to the same text for every rank, or choose another port");
  }
  CHECK(refusal(address, {"the secret", 1, 3, "", ""}) ==
        begin + "it was started with 3 ranks, rank 0 with 2; start all ranks with the same number");
  CHECK(refusal(address, {"the secret", 2, 2, "", ""}) == begin + "rank 2 does not exist; ranks count from 0");
  CHECK(refusal(address, {"the secret", -1, 2, "", ""}) == begin + "rank -1 does not exist; ranks count from 0");
  CHECK(refusal(address, {"the secret", 0, 2, "", ""}) ==
        begin + "rank 0 has already joined; give each process its own rank");
  for (const Kind kind : {Kind::accepted, Kind::rejected, Kind::rejected, Kind::rejected, Kind::rejected,
                          Kind::rejected}) {  // each reason once
    const auto heard = first.next();
    REQUIRE(heard);
    CHECK(heard->kind == kind);
  }
  CHECK(first.is_quiet());
  first.send({Kind::bye});
}

TEST_CASE("coordinator: a first message that is no greeting, or is too long, ends the connection without an answer") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2));
  const std::string hello = to_text(Hello{"the secret", 1, 2, "", ""});
  const auto answers = [&](const Message& message) {
    Peer peer(address);
    peer.send(message);
    int count = 0;
    while (peer.next()) ++count;
    CHECK(peer.has_ended());
    return count;
  };
  for (const Kind kind : {Kind::welcome, Kind::give, Kind::fail, Kind::roll, Kind::here, Kind::busy, Kind::bye})
    CHECK(answers({kind, 0, hello}) == 0);
  CHECK(answers({Kind::hello, 0, "not a greeting"}) == 0);
  const auto of_size = [](std::size_t bytes) {
    Hello wrong{"wrong", 1, 2, "", ""};
    wrong.name.resize(bytes - to_text(wrong).size(), 'x');
    return Message{Kind::hello, 0, to_text(wrong)};
  };
  CHECK(answers(of_size(4096)) == 1);  // it is read, and rejected for its token
  CHECK(answers(of_size(4097)) == 0);
}

TEST_CASE("coordinator: of 64 connections without a greeting only the oldest is dropped") {
  TimeOfCoordinator time;
  GroupAddress address;
  std::vector<Peer> strangers;
  for (int i = 0; i < 64; ++i) strangers.emplace_back(address);
  const Coordinator coordinator(listener_of(address), options_for(address, 2));
  CHECK(strangers.front().has_ended());
  time.work_off();
  for (std::size_t i = 1; i < strangers.size(); ++i) CHECK(strangers[i].is_quiet());
}

namespace {

// The most connections that the coordinator has accepted between two looks at its clock.
class PortionsOfCoordinator final : public engine::TimeSource {
 public:
  explicit PortionsOfCoordinator(const GroupAddress& address)
      : listener_(address.listener.get()), before_(address.queued()) {
    engine::test_modes().time = this;
  }
  ~PortionsOfCoordinator() override { engine::test_modes().time = &engine::real_time(); }
  void poll(pollfd* files, nfds_t count, int milliseconds) override {
    tcp_info info{};
    socklen_t size = sizeof info;
    ::getsockopt(listener_, IPPROTO_TCP, TCP_INFO, &info, &size);
    most = std::max(most.load(), before_ - info.tcpi_unacked);
    before_ = info.tcpi_unacked;
    TimeSource::poll(files, count, milliseconds);
  }
  std::atomic<unsigned> most{0};

 private:
  const int listener_;
  unsigned before_;
};

}  // namespace

TEST_CASE("coordinator: a crowd of connections is accepted in portions, so that its clocks go on") {
  GroupAddress address;
  std::vector<Peer> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(address);
  CHECK(becomes([&] { return address.queued() == 300; }));
  PortionsOfCoordinator portions(address);
  Coordinator coordinator(listener_of(address), options_for(address, 2));
  CHECK(becomes([&] { return address.queued() == 0; }));
  CHECK(portions.most <= 64);
}

TEST_CASE("coordinator: all ranks receive the hello of every rank without the token, and the port is closed") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 3));
  address.listener.close();
  std::vector<Peer> peers;
  for (const int rank : {2, 0, 1}) peers.emplace_back(address, rank, 3);
  for (Peer& peer : peers) {
    REQUIRE(peer.next(Kind::accepted));
    const auto welcome = peer.next();
    REQUIRE(welcome);
    CHECK(welcome->kind == Kind::welcome);
    const std::vector<std::string> all = split(welcome->body);
    REQUIRE(all.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      const Hello hello = parse_hello(all[static_cast<std::size_t>(rank)]);
      CHECK(hello.token.empty());
      CHECK(hello.rank == rank);
      CHECK(hello.size == 3);
      CHECK(hello.host == "host " + std::to_string(rank));
      CHECK(hello.name == "name " + std::to_string(rank));
    }
  }
  const auto accepts = [&] {
    try {
      return static_cast<bool>(connect_to("127.0.0.1", address.port, Clock::now()));
    } catch (const Error&) {
      return false;
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  while (accepts()) REQUIRE(in_time(begin, 1));
  for (Peer& peer : peers) peer.send({Kind::bye});
}

TEST_CASE("coordinator: an exchange is complete when every rank has given its part, in any order") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2));
  Peer first(address, 0, 2), second(address, 1, 2);
  all_welcomed({&first, &second});
  const std::string longest(kLongestPart, 'x');
  second.send({Kind::give, 1, longest});
  second.send({Kind::give, 0, ""});
  first.send({Kind::give, 0, "a"});
  first.send({Kind::give, 1, "b"});
  for (Peer* peer : {&first, &second}) {
    std::map<std::uint64_t, std::vector<std::string>> exchanges;
    for (int i = 0; i < 2; ++i) {
      const auto all = peer->next();
      REQUIRE(all);
      CHECK(all->kind == Kind::everyone);
      exchanges[all->number] = split(all->body);
    }
    CHECK(exchanges[0] == std::vector<std::string>{"a", ""});
    CHECK(exchanges[1] == std::vector<std::string>{"b", longest});
    peer->send({Kind::bye});
  }
}

TEST_CASE("coordinator: the ranks that miss a roll call are reported to the rank that requested it") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 4));
  std::vector<Peer> peers;
  for (int rank = 0; rank < 4; ++rank) peers.emplace_back(address, rank, 4);
  for (Peer& peer : peers) REQUIRE(peer.next(Kind::welcome));
  peers[0].send({Kind::roll});
  peers[0].send({Kind::here, 1});
  for (Peer& peer : peers) {
    const auto roll = peer.next();
    REQUIRE(roll);
    CHECK(roll->kind == Kind::roll);
    CHECK(roll->number == 1);
  }
  peers[2].send({Kind::here, 2});  // answers another call
  time.pass(1);
  const auto silent = peers[0].next();
  REQUIRE(silent);
  CHECK(silent->kind == Kind::silent);
  CHECK(split(silent->body) == std::vector<std::string>{"1", "2", "3"});
  for (const std::size_t other : {1, 2, 3}) CHECK(peers[other].is_quiet());  // they did not request the roll call
  peers[3].send({Kind::roll});
  for (Peer& peer : peers) {
    const auto roll = peer.next();
    REQUIRE(roll);
    CHECK(roll->kind == Kind::roll);
    CHECK(roll->number == 2);
    peer.send({Kind::bye});
  }
}

TEST_CASE("coordinator: the end of a rank's work extends only the exchanges that this rank has not reached") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2));
  Peer first(address, 0, 2), second(address, 1, 2);
  all_welcomed({&first, &second});
  second.send({Kind::give, 0, ""});
  second.send({Kind::busy, 1});
  second.send({Kind::busy, 0});  // has reached exchange 0
  second.send({Kind::roll});
  REQUIRE(first.next(Kind::roll));  // rank 0 has read the messages of rank 1
  first.send({Kind::busy, 1});
  first.send({Kind::busy, 0});
  first.send({Kind::give, 0, ""});
  for (Peer* peer : {&first, &second}) {
    int extended = 0;
    auto message = peer->next();
    for (; message && message->kind != Kind::everyone; message = peer->next()) extended += message->kind == Kind::busy;
    CHECK(message);
    CHECK(extended == 1);
    peer->send({Kind::bye});
  }
}

TEST_CASE("coordinator: while only a busy rank is missing, an exchange outlasts the timeout") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2, 5));
  Peer stranger(address);  // no rank, hence not missing
  Peer first(address, 0, 2), second(address, 1, 2);
  first.send({Kind::busy, 1});
  second.send({Kind::give, 0, "b"});
  REQUIRE(second.next(Kind::welcome));
  time.pass(6);
  const auto extended = second.next();
  REQUIRE(extended);
  CHECK(extended->kind == Kind::busy);
  first.send({Kind::give, 0, "a"});
  const auto all = second.next(Kind::everyone);
  REQUIRE(all);
  CHECK(split(all->body) == std::vector<std::string>{"a", "b"});
  for (Peer* peer : {&first, &second}) peer->send({Kind::bye});
}

TEST_CASE("coordinator: the ranks that have not joined within the timeout are named") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 4, 60));
  Peer first(address, 0, 4), third(address, 2, 4);
  for (Peer* peer : {&first, &third}) REQUIRE(peer->next(Kind::accepted));
  time.pass(59);
  for (Peer* peer : {&first, &third}) CHECK(peer->is_quiet());
  time.pass(2);
  for (Peer* peer : {&first, &third}) {
    const auto message = peer->next();
    REQUIRE(message);
    CHECK(message->kind == Kind::fail);
    CHECK(std::string(parse_failure(message->body).error.what()) ==
          "ranks 1, 3 of 4 did not join within 60 s; check that all ranks were started, or raise --timeout");
    peer->send({Kind::bye});
  }
}

TEST_CASE("coordinator: time in which the process was suspended does not count") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2, 60));
  Peer first(address, 0, 2), second(address, 1, 2);
  all_welcomed({&first, &second});
  second.send({Kind::give, 0, ""});
  for (int i = 0; i < 10; ++i) time.jump(1000);  // each counts as one second
  time.pass(49);
  CHECK(second.is_quiet());
  time.pass(2);
  CHECK(second.next(Kind::fail));
  for (Peer* peer : {&first, &second}) peer->send({Kind::bye});
}

TEST_CASE("coordinator: a missing rank ends the group with a message that names it, the exchange and the timeout") {
  TimeOfCoordinator time;
  GroupAddress address;
  const Coordinator coordinator(listener_of(address), options_for(address, 2, 60));
  Peer first(address, 0, 2), second(address, 1, 2);
  all_welcomed({&first, &second});
  second.send({Kind::give, 0, ""});
  time.pass(59);
  CHECK(second.is_quiet());
  time.pass(2);
  const auto message = second.next();
  REQUIRE(message);
  CHECK(message->kind == Kind::fail);
  const Failure late = parse_failure(message->body);
  CHECK(late.rank == Failure::kNobody);
  CHECK(late.error.code() == ErrorCode::timeout);
  CHECK(std::string(late.error.what()) == "rank 0 of 2 did not reach exchange 0 within 60 s");
  for (Peer* peer : {&first, &second}) peer->send({Kind::bye});
}

TEST_CASE("coordinator: a rank that has left is missing from an exchange, whether others are busy or not") {
  for (const bool busy : {false, true}) {
    TimeOfCoordinator time;
    GroupAddress address;
    const Coordinator coordinator(listener_of(address), options_for(address, 3, 60));
    Peer first(address, 0, 3), second(address, 1, 3);
    auto third = std::make_unique<Peer>(address, 2, 3);
    all_welcomed({&first, &second, third.get()});
    third->send({Kind::bye});
    third.reset();
    if (busy) first.send({Kind::busy, 1});
    if (!busy) first.send({Kind::give, 0, ""});
    second.send({Kind::give, 0, ""});
    time.pass(61);
    const auto message = second.next(Kind::fail);
    REQUIRE(message);
    CHECK_THAT(parse_failure(message->body).error.what(),
               Catch::Contains(busy ? "ranks 0, 2 of 3 did not reach exchange 0" : "rank 2 of 3 did not reach"));
    for (Peer* peer : {&first, &second}) peer->send({Kind::bye});
  }
}

TEST_CASE("coordinator: the first failure is passed on to all ranks, and later ones are dropped") {
  TimeOfCoordinator time;
  GroupAddress address;
  Peer first(address, 0, 3), second(address, 1, 3), third(address, 2, 3);
  auto coordinator = std::make_unique<Coordinator>(listener_of(address), options_for(address, 3));
  all_welcomed({&first, &second, &third});
  second.send({Kind::fail, 0, to_text(Failure{1, Error(ErrorCode::data, "a bad file")})});
  for (Peer* peer : {&first, &second, &third}) {
    const auto message = peer->next();
    REQUIRE(message);
    CHECK(message->kind == Kind::fail);
    const Failure failure = parse_failure(message->body);
    CHECK(failure.rank == 1);
    CHECK(failure.error.code() == ErrorCode::data);
    CHECK(std::string(failure.error.what()) == "a bad file");
  }
  third.send({Kind::fail, 0, to_text(Failure{2, Error(ErrorCode::io, "a consequence")})});
  third.send({Kind::give, 0, ""});
  for (Peer* peer : {&first, &second, &third}) peer->send({Kind::bye});
  coordinator.reset();
  for (Peer* peer : {&first, &second, &third}) {
    CHECK_FALSE(peer->next());  // no second failure
    CHECK(peer->has_ended());
  }
}

TEST_CASE("coordinator: if rank 0 leaves without having joined, the other ranks fail") {
  TimeOfCoordinator time;
  GroupAddress address;
  auto coordinator = std::make_unique<Coordinator>(listener_of(address), options_for(address, 2));
  Peer second(address, 1, 2);
  REQUIRE(second.next(Kind::accepted));
  std::thread ending([&] { coordinator.reset(); });
  const auto failure = second.next();
  second.send({Kind::bye});
  ending.join();
  REQUIRE(failure);
  CHECK(failure->kind == Kind::fail);
  CHECK(to_sentence(parse_failure(failure->body)) == "rank 0 failed: it could not join its own group");
}

TEST_CASE("coordinator: the destructor waits for the last message of every rank") {
  TimeOfCoordinator time;
  GroupAddress address;
  auto coordinator = std::make_unique<Coordinator>(listener_of(address), options_for(address, 2));
  Peer first(address, 0, 2), second(address, 1, 2);
  all_welcomed({&first, &second});
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    coordinator.reset();
    ended = true;
  });
  second.send({Kind::bye});
  time.work_off();
  CHECK_FALSE(ended);
  second.send({Kind::give, 0, ""});
  first.send({Kind::give, 0, ""});
  CHECK(first.next(Kind::everyone));  // rank 0 still serves them
  first.send({Kind::bye});
  ending.join();
  CHECK(first.has_ended());
}
