// Process groups: which ranks are admitted, exchanges, and how a group ends.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>

#include "engine/process_group/connection.h"
#include "engine/process_group/coordinator.h"
#include "engine/process_group/process_group_state.h"
#include "process_group/group_ranks.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::test;

namespace {

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

// A connection that claims this rank.
process_group::Connection greeting(const GroupAddress& address, int rank, int size) {
  process_group::Connection connection(
      process_group::connect_to("127.0.0.1", address.port, process_group::Clock::now() + std::chrono::seconds(5)));
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

TEST_CASE("process group: the ranks that joined name a missing rank after the timeout") {
  GroupAddress address;
  const auto begin = std::chrono::steady_clock::now();
  std::string first, third;
  std::thread other([&] { third = refusal(address.options(2, 4, 1.0)); });
  CHECK(becomes([&] { return address.queued() >= 1; }));
  first = refusal(address.options(0, 4, 1.0));
  other.join();
  CHECK(in_time(begin, 2));
  const std::string why =
      " of 4 could not join: ranks 1, 3 of 4 did not join within 1 s; check that all ranks were started, or raise "
      "--timeout";
  CHECK(first == "rank 0" + why);
  CHECK(third == "rank 2" + why);
}

// Rank 2 is the first in the queue of connections: it joins and ends before rank 0 has joined.
TEST_CASE("process group: ranks that join after another rank has ended get an error that names it") {
  GroupAddress address;
  greeting(address, 2, 3);
  auto late = std::async(std::launch::async, [&] { return refusal(address.options(1, 3)); });
  CHECK(becomes([&] { return address.queued() >= 2; }));  // rank 1 has connected before rank 0 fails and ends
  const std::string first = refusal(address.options(0, 3));
  const std::string why = "could not join: rank 2 failed: its process ended without an error message (was it killed?)";
  CHECK(first == "rank 0 of 3 " + why);
  CHECK(late.get() == "rank 1 of 3 " + why);
}

TEST_CASE("process group: a rank that connects after a failure gets its message") {
  GroupAddress address;
  greeting(address, 2, 3);
  process_group::Coordinator coordinator(FileHandle(::dup(address.listener.get())), address.options(0, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto failure = process_group::parse_failure(refused_directly(address, 1, 3));
  CHECK(failure.rank == 2);
  CHECK(contains(failure.error.what(), "ended without an error message"));
}

TEST_CASE("process group: a rank missing from an exchange is named") {
  const auto failures = on_ranks(
      3,
      [](const auto& group) {
        if (group->rank() != 1)
          group->exchange("");
        else
          becomes([&] { return group->failure().has_value(); });
      },
      /*timeout=*/3);
  CHECK(contains(failures[0].text, "rank 1 of 3 did not reach exchange"));
  CHECK(failures[2].code == ErrorCode::timeout);
}

TEST_CASE("process group: ranks whose processes do not answer are known to the others") {
  GroupAddress address;
  std::vector<std::shared_ptr<ProcessGroup>> ranks(3);
  std::vector<std::thread> joining;
  for (const int rank : {0, 1, 3})
    joining.emplace_back([&, rank] {
      ranks[static_cast<std::size_t>(rank == 3 ? 2 : rank)] = ProcessGroup::join(address.options(rank, 4, 10));
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
  std::atomic<bool> busy{false}, exchanged{false};
  const auto failures = on_ranks(
      3,
      [&](const auto& group) {
        if (group->rank() == 0) {
          group->busy(true);
          busy = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(4000));  // beyond the timeout
          group->busy(false);
        } else {
          becomes([&] { return busy.load(); });
        }
        group->exchange("");
        if (group->rank() == 2) exchanged = true;
        if (group->rank() != 0)
          group->exchange("");  // rank 0 does not join this exchange
        else
          becomes([&] { return group->failure().has_value(); });
      },
      /*timeout=*/2);
  CHECK(exchanged);
  CHECK(contains(failures[1].text, "rank 0 of 3 did not reach exchange 1 within"));
}

TEST_CASE("process group: the time in which a rank was busy does not count for its timeout") {
  // The timeout is four seconds. Rank 0 stops being busy before (3 s) or after (4.5 s) the first four seconds.
  const auto exchange_while_busy = [](double busy) {
    return on_ranks(
        2,
        [busy](const auto& group) {
          if (group->rank() == 0) {
            group->busy(true);
            std::this_thread::sleep_for(std::chrono::duration<double>(busy));
            group->busy(false);
            std::this_thread::sleep_for(std::chrono::seconds(2));
          }
          group->exchange("");
        },
        /*timeout=*/4);
  };
  std::vector<RankFailure> after;
  std::thread other([&] { after = exchange_while_busy(4.5); });
  const std::vector<RankFailure> before = exchange_while_busy(3);
  other.join();
  for (const auto& failures : {before, after})
    for (const RankFailure& failure : failures) {
      INFO(failure.text);
      CHECK_FALSE(failure.failed);
    }
}

TEST_CASE("process group: ranks that wait for a busy one are notified once per timeout") {
  GroupAddress address;
  std::shared_ptr<ProcessGroup> first;
  std::thread joining([&] { first = ProcessGroup::join(address.options(0, 2, 1)); });
  process_group::Connection second = greeting(address, 1, 2);
  joining.join();
  first->busy(true);
  second.send({process_group::Kind::give, 0, ""});
  const auto begin = process_group::Clock::now();
  int busy_messages = 0;
  while (process_group::Clock::now() - begin < std::chrono::milliseconds(3500)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    REQUIRE(second.read(4096));
    while (const auto message = second.next(4096)) busy_messages += message->kind == process_group::Kind::busy;
  }
  CHECK(busy_messages >= 1);
  CHECK(busy_messages <= 1 + std::chrono::duration<double>(process_group::Clock::now() - begin).count());
  first->exchange("");
  second.send({process_group::Kind::bye});
}

TEST_CASE("process group: strangers that disconnect at once do no harm") {
  GroupAddress address;
  std::shared_ptr<ProcessGroup> first;
  std::thread joining([&] { first = ProcessGroup::join(address.options(0, 2)); });
  for (int i = 0; i < 100; ++i) {  // more than the limit of pending connections
    process_group::Connection stranger(
        process_group::connect_to("127.0.0.1", address.port, process_group::Clock::now() + std::chrono::seconds(5)));
    stranger.send({process_group::Kind::hello, 0, process_group::to_text(process_group::Hello{"wrong", 1, 2, "", ""})});
    const linger at_once{1, 0};
    ::setsockopt(stranger.descriptor(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  auto other = ProcessGroup::join(address.options(1, 2, 5));
  joining.join();
  std::thread answering([&] { first->exchange(""); });
  other->exchange("");
  answering.join();
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::getrusage(RUSAGE_SELF, &after);
  const auto seconds = [](const rusage& u) {
    return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  };
  CHECK(seconds(after) - seconds(before) < 0.25);
  std::thread leaving([&] { first.reset(); });
  other.reset();
  leaving.join();
}

TEST_CASE("process group: a rank that connects before a crowd of strangers is admitted") {
  GroupAddress address;
  const auto soon = process_group::Clock::now() + std::chrono::seconds(20);
  process_group::Connection rank = greeting(address, 1, 2);
  std::vector<process_group::Connection> silent, wrong;
  for (int i = 0; i < 50; ++i) {
    silent.emplace_back(process_group::connect_to("127.0.0.1", address.port, soon));
    wrong.emplace_back(process_group::connect_to("127.0.0.1", address.port, soon));
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
  const auto deadline = process_group::Clock::now() + std::chrono::seconds(5);
  std::vector<FileHandle> strangers;
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string()}) {
    strangers.push_back(process_group::connect_to("127.0.0.1", address.port, deadline));
    ::send(strangers.back().get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  process_group::Connection torn(process_group::connect_to("127.0.0.1", address.port, deadline));
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
  GroupAddress address;
  std::string error;
  std::thread rank([&] {
    try {
      ProcessGroup::join(address.options(1, 2, 20));
    } catch (const Error& e) {
      error = e.what();
    }
  });
  pollfd connected{address.listener.get(), POLLIN, 0};
  CHECK(::poll(&connected, 1, 10000) == 1);
  process_group::Connection false_rank_0{FileHandle(::accept(address.listener.get(), nullptr, nullptr))};
  false_rank_0.send({process_group::Kind::bye});
  const auto begin = std::chrono::steady_clock::now();
  rank.join();
  CHECK_THAT(error, Catch::Contains("sent what no rank 0 sends"));
  CHECK(in_time(begin, 10));  // not by the timeout
}

TEST_CASE("process group: the ranks that wait learn which process was rejected, and why") {
  GroupAddress address;
  std::string first;
  std::thread rank([&] { first = refusal(address.options(0, 2, 3.0)); });
  const std::string to_stranger = refused_directly(address, 1, 3);
  rank.join();
  CHECK_THAT(to_stranger, Catch::Contains("it was started with 3 ranks, rank 0 with 2"));
  CHECK_THAT(first, Catch::Contains("rank 1 of 2 did not join within 3 s (rank 0 rejected rank 1 of 3 on host ''") &&
                        Catch::Contains("it was started with 3 ranks, rank 0 with 2"));
}

TEST_CASE("process group: a program that listens on the port but is not rank 0 is the cause, within the timeout") {
  for (const bool closes : {false, true}) {
    GroupAddress address;
    std::string error;
    std::thread rank([&] { error = refusal(address.options(1, 2, 2.0)); });
    pollfd connected{address.listener.get(), POLLIN, 0};
    CHECK(::poll(&connected, 1, 10000) == 1);
    FileHandle other(::accept(address.listener.get(), nullptr, nullptr));
    if (closes) other.close();
    rank.join();
    CHECK_THAT(error,
               Catch::Contains("what listens at 127.0.0.1:") && Catch::Contains("another program uses this port"));
    CHECK_THAT(error, Catch::Contains(closes ? "closed the connection" : "did not answer within 2 s"));
  }
}
