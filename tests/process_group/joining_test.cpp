// Process groups: which ranks are admitted, exchanges, and how a group ends.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>

#include "apps/processes.h"
#include "engine/process_group/connection.h"
#include "engine/process_group/coordinator.h"
#include "engine/process_group/process_group_state.h"
#include "process_group/group_ranks.h"
#include "process_group/peer.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/fake_time.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;
using process_group::Kind;

namespace {

// The parts that ranks have given to an exchange: sent, though rank 0 may not have read them.
class Gives {
 public:
  void exchange(ProcessGroup& group) {
    const std::uint64_t number = group.state().give("");
    ++given_;
    group.state().wait(number);
  }
  void wait_for(int count) {
    if (!becomes([&] { return given_ >= count; })) throw Error(ErrorCode::timeout, "the other ranks give nothing");
  }

 private:
  std::atomic<int> given_{0};
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The error text of a failed join.
std::string refusal(const ProcessGroupOptions& options) {
  try {
    ProcessGroup::join(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Counts how many waits of the coordinator in a row ended without an event.
class PollsOfCoordinator final : public engine::TimeSource {
 public:
  PollsOfCoordinator() { engine::test_modes().time = this; }
  ~PollsOfCoordinator() override { engine::test_modes().time = &engine::real_time(); }
  void poll(pollfd* files, nfds_t count, int milliseconds) override {
    TimeSource::poll(files, count, milliseconds);
    const bool event = std::any_of(files, files + count, [](const pollfd& file) { return file.revents != 0; });
    quiet = event ? 0 : quiet + 1;
  }
  std::atomic<int> quiet{0};
};

// A connection that claims this rank.
process_group::Connection greeting(const GroupAddress& address, int rank, int size) {
  process_group::Connection connection(address.connected());
  connection.send(
      {process_group::Kind::hello, 0, process_group::to_text(process_group::Hello{"the secret", rank, size, "", ""})});
  return connection;
}

// Rank 0's answer to a connection that claims this rank.
std::string refused_directly(const GroupAddress& address, int rank, int size) {
  process_group::Connection connection = greeting(address, rank, size);
  while (connection.read(4096))
    if (const auto message = connection.next(4096)) return message->body;
  const auto last = connection.next(4096);
  return last ? last->body : "";
}

}  // namespace

TEST_CASE("process group: ranks exchange texts in rank order, any number of times") {
  for (const int size : {1, 2, 5}) {
    all_ranks(size, [&](const auto& group) {
      DP_HOLDS(group->size() == size);
      DP_HOLDS(group->one_host());
      DP_HOLDS(group->local_size() == size);
      DP_HOLDS(group->local_rank() == group->rank());
      for (int round = 0; round < 50; ++round) {
        const auto all = group->exchange(std::to_string(100 * round + group->rank()));
        DP_HOLDS(all.size() == static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank)
          DP_HOLDS(all[static_cast<std::size_t>(rank)] == std::to_string(100 * round + rank));
      }
      const std::string large(60000, static_cast<char>('a' + group->rank()));
      DP_HOLDS(group->from_first(large) == std::string(60000, 'a'));
      bool refused = false;
      try {
        group->exchange(std::string(70000, 'x'));
      } catch (const Error&) {
        refused = true;
      }
      DP_HOLDS(refused);
    });
  }
}

TEST_CASE("process group: all ranks learn of a request at the same call") {
  all_ranks(3, [](const auto& group) {
    std::vector<bool> answers;
    for (int question = 0; question < 6; ++question)
      answers.push_back(group->agree(group->rank() == 2 && question == 3));
    const std::vector<bool> expected{false, false, false, false, true, false};
    DP_HOLDS(answers == expected);
  });
}

TEST_CASE("process group: one rank's failure ends every rank's wait with its code and its name") {
  const auto failures = on_ranks(4, [](const auto& group) {
    group->exchange("");
    if (group->rank() == 2) throw Error(ErrorCode::nonfinite, "the loss is not finite");
    group->exchange("never complete");
  });
  for (int rank = 0; rank < 4; ++rank) {
    const RankFailure& failure = failures[static_cast<std::size_t>(rank)];
    CHECK(failure.failed);
    CHECK(failure.code == ErrorCode::nonfinite);
    CHECK(contains(failure.text, "the loss is not finite"));
    CHECK(contains(failure.text, "rank 2") == (rank != 2));
  }
}

// Rank 0 may also be named, if it has not reached its own port when the time has passed. coordinator_test.cpp checks
// the names.
TEST_CASE("process group: the ranks that joined name a missing rank after the timeout") {
  TimeOfCoordinator time;
  GroupAddress address;
  auto first = std::async(std::launch::async, [&] { return refusal(address.options(0, 4, 60)); });
  Peer second(address, 2, 4);
  REQUIRE(second.next(Kind::accepted));
  time.pass(61);
  const auto failure = second.next(Kind::fail);
  REQUIRE(failure);
  const std::string why = process_group::parse_failure(failure->body).error.what();
  CHECK_THAT(why, Catch::StartsWith("ranks ") && Catch::EndsWith("1, 3 of 4 did not join within 60 s; check that all "
                                                                 "ranks were started, or raise --timeout"));
  second.send({Kind::bye});
  CHECK(first.get() == "rank 0 of 4 could not join: " + why);
}

// Rank 2 is the first in the queue of connections: it joins and ends before rank 0 has joined.
TEST_CASE("process group: ranks that join after another rank has ended get an error that names it") {
  TimeOfCoordinator time;
  GroupAddress address;
  greeting(address, 2, 3);
  Peer late(address, 1, 3);
  auto first = std::async(std::launch::async, [&] { return refusal(address.options(0, 3)); });
  const auto failure = late.next();
  late.send({Kind::bye});
  REQUIRE(failure);
  CHECK(failure->kind == Kind::fail);
  const std::string why = "rank 2 failed: its process ended without an error message (was it killed?)";
  CHECK(to_sentence(process_group::parse_failure(failure->body)) == why);
  CHECK(first.get() == "rank 0 of 3 could not join: " + why);
}

TEST_CASE("process group: a rank that connects after a failure gets its message") {
  TimeOfCoordinator time;
  GroupAddress address;
  greeting(address, 2, 3);
  process_group::Coordinator coordinator(FileHandle(::dup(address.listener.get())), address.options(0, 3));
  time.work_off();
  const auto failure = process_group::parse_failure(refused_directly(address, 1, 3));
  CHECK(failure.rank == 2);
  CHECK(contains(failure.error.what(), "ended without an error message"));
}

TEST_CASE("process group: a rank missing from an exchange is named") {
  TimeOfCoordinator time;
  Gives gives;
  const auto failures = on_ranks(
      3,
      [&](const auto& group) {
        if (group->rank() != 1) return gives.exchange(*group);
        gives.wait_for(2);
        time.pass(61);
        becomes([&] { return group->failure().has_value(); });
      },
      /*timeout=*/60);
  CHECK(contains(failures[0].text, "rank 1 of 3 did not reach exchange"));
  CHECK(failures[2].code == ErrorCode::timeout);
}

TEST_CASE("process group: ranks whose processes do not answer are known to the others") {
  GroupAddress address;
  std::vector<std::shared_ptr<ProcessGroup>> ranks(3);
  std::vector<std::thread> joining;
  for (const int rank : {0, 1, 3})
    joining.emplace_back([&, rank] {
      ranks[static_cast<std::size_t>(rank == 3 ? 2 : rank)] = ProcessGroup::join(address.options(rank, 4));
    });
  process_group::Connection mute = greeting(address, 2, 4);
  for (std::thread& thread : joining) thread.join();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> first, last;
  // A rank has half a second to answer. On a loaded machine another one may be late, too.
  do {
    std::thread asking([&] { first = ranks[0]->state().silent_ranks(); });
    last = ranks[2]->state().silent_ranks();
    asking.join();
  } while ((first != std::vector{2} || last != std::vector{2}) && in_time(begin, 0));
  CHECK(first == std::vector{2});
  CHECK(last == std::vector{2});
  mute.send({process_group::Kind::here, 1});  // too late for that call; the next call ignores it
  CHECK(becomes([&] { return ranks[1]->state().silent_ranks() == std::vector{2}; }));
  mute.send({process_group::Kind::bye});
  while (!ranks.empty()) ranks.pop_back();  // rank 0's destructor waits for the other ranks
}

TEST_CASE("process group: a busy rank is waited for beyond the timeout until it is no longer busy") {
  TimeOfCoordinator time;
  Gives gives;
  std::atomic<bool> busy{false}, exchanged{false};
  const auto failures = on_ranks(
      3,
      [&](const auto& group) {
        if (group->rank() == 0) {
          group->busy(true);
          busy = true;
          gives.wait_for(2);
          time.pass(150);  // beyond the timeout
          group->busy(false);
          group->exchange("");
          gives.wait_for(4);
          time.pass(61);
          becomes([&] { return group->failure().has_value(); });
          return;
        }
        becomes([&] { return busy.load(); });
        gives.exchange(*group);
        exchanged = true;
        gives.exchange(*group);  // rank 0 does not join this exchange
      },
      /*timeout=*/60);
  CHECK(exchanged);
  CHECK(contains(failures[1].text, "rank 0 of 3 did not reach exchange 1 within 60 s"));
}

TEST_CASE("process group: the time in which a rank was busy does not count for its timeout") {
  // Rank 0 stops being busy before or after the first timeout.
  for (const double busy : {45.0, 70.0}) {
    TimeOfCoordinator time;
    Gives gives;
    const auto failures = on_ranks(
        2,
        [&](const auto& group) {
          if (group->rank() != 0) return gives.exchange(*group);
          group->busy(true);
          gives.wait_for(1);
          time.pass(busy);
          group->busy(false);
          time.pass(55);
          group->exchange("");
        },
        /*timeout=*/60);
    for (const RankFailure& failure : failures) {
      INFO("busy for " << busy << " s: " << failure.text);
      CHECK_FALSE(failure.failed);
    }
  }
}

TEST_CASE("process group: ranks that wait for a busy one are notified once per timeout") {
  TimeOfCoordinator time;
  GroupAddress address;
  std::shared_ptr<ProcessGroup> first;
  std::thread joining([&] { first = ProcessGroup::join(address.options(0, 2, 60)); });
  Peer second(address, 1, 2);
  joining.join();
  first->busy(true);
  second.send({Kind::give, 0, ""});
  time.pass(200);
  first->exchange("");
  int busy_messages = 0;
  auto message = second.next(Kind::welcome);
  while (message && message->kind != Kind::everyone) {
    message = second.next();
    busy_messages += message && message->kind == Kind::busy;
  }
  CHECK(message);
  CHECK(busy_messages == 3);
  second.send({Kind::bye});
}

TEST_CASE("process group: strangers that disconnect at once do no harm") {
  PollsOfCoordinator polls;
  GroupAddress address;
  std::shared_ptr<ProcessGroup> first;
  std::thread joining([&] { first = ProcessGroup::join(address.options(0, 2)); });
  for (int i = 0; i < 100; ++i) {  // more than the limit of pending connections
    process_group::Connection stranger(address.connected());
    stranger.send({process_group::Kind::hello, 0, process_group::to_text(process_group::Hello{"wrong", 1, 2, "", ""})});
    const linger at_once{1, 0};
    ::setsockopt(stranger.descriptor(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  auto other = ProcessGroup::join(address.options(1, 2));
  joining.join();
  std::thread answering([&] { first->exchange(""); });
  other->exchange("");
  answering.join();
  CHECK(becomes([&] { return polls.quiet >= 3; }));  // rank 0 waits, and does not ask in a loop
  std::thread leaving([&] { first.reset(); });
  other.reset();
  leaving.join();
}

TEST_CASE("process group: a rank that connects before a crowd of strangers is admitted") {
  GroupAddress address;
  process_group::Connection rank = greeting(address, 1, 2);
  std::vector<process_group::Connection> silent, wrong;
  for (int i = 0; i < 50; ++i) {
    silent.emplace_back(address.connected());
    wrong.emplace_back(address.connected());
    wrong.back().send(
        {process_group::Kind::hello, 0, process_group::to_text(process_group::Hello{"wrong", 1, 2, "", ""})});
  }
  const auto first = ProcessGroup::join(address.options(0, 2));  // accepts connections for the first time
  CHECK(first->size() == 2);
  rank.send({process_group::Kind::bye});
}

TEST_CASE("process group: an exception that ends a rank ends the process group") {
  GroupAddress address;
  std::string heard;
  std::thread other([&] {
    try {
      const auto group = ProcessGroup::join(address.options(1, 2));
      throw std::runtime_error("not one of ours");
    } catch (const std::runtime_error&) {
    }
  });
  try {
    const auto group = ProcessGroup::join(address.options(0, 2));
    group->exchange("");
  } catch (const Error& error) {
    heard = error.what();
  }
  other.join();
  CHECK(contains(heard, "rank 1 failed: an exception ended its training"));
}

TEST_CASE("process group: a connection with another token, another size or a taken rank is rejected") {
  GroupAddress address;
  std::string first_error, second_error;
  std::thread first([&] { first_error = refusal(address.options(0, 2)); });
  ProcessGroupOptions stranger = address.options(1, 2);
  for (const char* token : {"", "t", "the secre", "the secreT", "the secret ", "the secret the secret"}) {
    INFO(token);
    stranger.token = token;
    CHECK(contains(
        refusal(stranger),
        "rank 1 of 2 could not join: rank 0 rejected this rank: its token differs from rank 0's; set DP_TOKEN"));
  }
  CHECK(contains(refusal(address.options(1, 3)), "started with 3 ranks, rank 0 with 2"));
  CHECK(contains(refused_directly(address, 0, 2), "rank 0 has already joined"));
  second_error = refusal(address.options(1, 2));
  first.join();
  CHECK(first_error.empty());
  CHECK(second_error.empty());
}

TEST_CASE("process group: generated tokens have 32 hexadecimal digits and differ") {
  std::set<std::string> drawn;
  for (int i = 0; i < 100; ++i) drawn.insert(process_group::drawn_token());
  CHECK(drawn.size() == 100);
  for (const std::string& token : drawn) {
    CHECK(token.size() == 32);
    CHECK(token.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(std::set<char>(token.begin(), token.end()).size() > 3);
  }
}

TEST_CASE("process group: random bytes on its port do no harm") {
  GroupAddress address;
  std::vector<std::string> heard;
  std::thread first([&] {
    const auto group = ProcessGroup::join(address.options(0, 2));
    heard = group->exchange("a");
  });
  std::vector<FileHandle> strangers;
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string()}) {
    strangers.push_back(address.connected());
    ::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  process_group::Connection torn(address.connected());
  torn.send({process_group::Kind::hello, 0, process_group::join({"dp-world-3", "the secret", "one", "2", "", ""})});
  std::vector<std::string> here;
  {
    const auto group = ProcessGroup::join(address.options(1, 2));
    here = group->exchange("b");
  }
  first.join();
  CHECK(here == std::vector<std::string>{"a", "b"});
  CHECK(heard == here);
}

TEST_CASE("process group: a message that rank 0 never sends ends the rank") {
  TimeOfWaits time;  // none passes: the timeout does not end the rank
  GroupAddress address;
  auto rank = std::async(std::launch::async, [&] { return refusal(address.options(1, 2)); });
  process_group::Connection false_rank_0(address.accepted());
  false_rank_0.send({process_group::Kind::bye});
  CHECK_THAT(rank.get(), Catch::Contains("sent what no rank 0 sends"));
}

// Rank 0 may also be named as missing, see above.
TEST_CASE("process group: the ranks that wait learn which process was rejected, and why") {
  TimeOfCoordinator time;
  GroupAddress address;
  auto first = std::async(std::launch::async, [&] { return refusal(address.options(0, 3, 3)); });
  Peer second(address, 2, 3);
  REQUIRE(second.next(Kind::accepted));
  CHECK_THAT(refused_directly(address, 1, 4), Catch::Contains("it was started with 4 ranks, rank 0 with 3"));
  CHECK(second.next(Kind::rejected));
  time.pass(4);
  second.send({Kind::bye});
  CHECK_THAT(first.get(), Catch::Contains("1 of 3 did not join within 3 s (rank 0 rejected rank 1 of 4 on host ''") &&
                              Catch::Contains("it was started with 4 ranks, rank 0 with 3"));
}

TEST_CASE("process group: a program that listens on the port but is not rank 0 is the cause, within the timeout") {
  for (const bool closes : {false, true}) {
    TimeOfWaits time;
    GroupAddress address;
    std::atomic<bool> ended{false};
    std::string error;
    std::thread rank([&] {
      error = refusal(address.options(1, 2, 2.0));
      ended = true;
    });
    FileHandle other = address.accepted();
    if (closes) {
      other.close();
      REQUIRE(becomes([] { return !has_thread("messages"); }));  // the rank has seen the end of the connection
    }
    time.pass(3, [&] { return ended.load(); });
    rank.join();
    CHECK_THAT(error,
               Catch::Contains("what listens at 127.0.0.1:") && Catch::Contains("another program uses this port"));
    CHECK_THAT(error, Catch::Contains(closes ? "closed the connection" : "did not answer within 2 s"));
  }
}
