// The coordinator: the thread of rank 0 that serves all ranks of a process group.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dp/error.h"
#include "dp/process_group.h"
#include "engine/base/test_modes.h"
#include "engine/process_group/connection.h"

namespace dp::process_group {

// Starts a thread. Error(device) if that fails; its message names the thread by `name`, as in "that listens to rank 0".
template <typename Work>
std::thread start_thread(const char* name, Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device, fmt::format("the thread {} could not be started ({}); raise ulimit -u and -v", name,
                                               error.code().message()));
  }
}

// The rendezvous server: a thread on rank 0 that admits the ranks, distributes the parts of each exchange, and reports
// failures to all ranks.

inline constexpr std::size_t kLongestPart = 64 << 10;  // limit for one rank's part of an exchange, in bytes

// The first message of a rank.
struct Hello {
  std::string token;
  int rank = 0, size = 0;
  std::string host;  // equal for ranks that can share memory
  std::string name;  // host name for messages
};
std::string to_text(const Hello& hello);
Hello parse_hello(const std::string& text);  // throws std::runtime_error

struct Failure {
  static constexpr int kNobody = -1;  // no failed rank: a rank is missing, or the group was ended
  int rank = kNobody;
  Error error;
};
std::string to_text(const Failure& failure);
std::string to_sentence(const Failure& failure);  // message for the users of the other ranks
Failure parse_failure(const std::string& text);   // throws std::runtime_error

class Coordinator {
 public:
  Coordinator(FileHandle listener, const ProcessGroupOptions& options);
  ~Coordinator();  // waits until every rank has sent `bye`, is disconnected, or a timeout has passed
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

 private:
  struct Guest {  // a connection; `rank` is -1 until its Hello is accepted
    Connection connection;
    Clock::time_point deadline;
    int rank = -1;
    bool bye = false, gone = false, busy = false;
  };
  struct Round {  // a pending exchange
    std::map<int, std::string> parts;
    Clock::time_point deadline;
  };
  struct RollCall {
    std::uint64_t number = 0;
    std::set<int> askers, silent;
    Clock::time_point deadline;
  };

  void run();
  void let_in();
  void listen_to(Guest& guest);
  void take(Guest& guest, const Message& message);
  void take_part(int rank, const Message& message);
  void call_roll(int asker);
  void end_roll_call();
  void look_at_clock();
  void welcome(Guest& guest, const std::string& hello);
  void reject(Guest& guest, const Hello& hello, const std::string& why);
  void lose(Guest& guest);
  void check_deadlines();
  bool only_busy_ones_miss(const Round& round) const;
  void set_busy(Guest& guest, bool busy);
  void put_off(Round& round);  // extends the deadline, here and on the waiting ranks
  void fail(const Failure& failure);
  void tell_all(const Message& message);
  bool finished() const;
  std::string missing(const std::map<int, std::string>& there) const;

  const ProcessGroupOptions options_;
  const Clock::duration patience_;
  engine::TimeSource& time_ = *engine::test_modes().time;
  Clock::time_point looked_ = time_.now(), now_ = looked_;  // now_: without time in which the process was suspended
  const Clock::time_point join_by_;
  FileHandle listener_;
  WakeUp closing_;
  std::list<Guest> guests_;
  std::map<int, std::string> joined_;  // by rank
  std::set<std::string> rejected_;     // who was refused, and why; at most kMostRejected
  std::map<std::uint64_t, Round> rounds_;
  std::optional<RollCall> roll_call_;
  std::uint64_t roll_calls_ = 0;
  std::optional<Failure> failure_;  // the first one
  bool closed_ = false;
  Clock::time_point end_by_ = Clock::time_point::max();  // set when closing or failed
  std::thread thread_;
};

}  // namespace dp::process_group
