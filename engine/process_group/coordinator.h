// Rank 0's other half: a thread that lets the ranks in, passes on what they exchange, and tells all of them when one fails.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dp/process_group.h"
#include "engine/process_group/connection.h"
#include "engine/process_group/socket.h"

namespace dp::process_group {

inline constexpr std::size_t kLongestPart = 64 << 10;  // of an exchange, in bytes

// What a rank says when it comes.
struct Hello {
  std::string token;
  int rank = 0, size = 0;
  std::string host;  // equal for ranks that can share memory
  std::string name;  // of the host, for a person
};
std::string to_text(const Hello& hello);
Hello parse_hello(const std::string& text);  // throws std::runtime_error

struct Failure {
  static constexpr int kNobody = -1;  // of no rank: one that is missing, or the world's end
  int rank = kNobody;
  Error error;
};
std::string to_text(const Failure& failure);
std::string to_sentence(const Failure& failure);  // for the other ranks' users
Failure parse_failure(const std::string& text);   // throws std::runtime_error

class Coordinator {
 public:
  Coordinator(FileHandle listener, const ProcessGroupOptions& options);
  ~Coordinator();  // when every rank has said goodbye, has been told of the failure, or has been waited for long enough
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

 private:
  struct Guest {  // a connection; a rank's once it has said who it is
    Connection connection;
    Clock::time_point deadline;
    int rank = -1;
    bool bye = false, gone = false, busy = false;
  };
  struct Round {  // an exchange under way
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
  void turn_away(Guest& guest, const std::string& why);
  void lose(Guest& guest);
  void check_deadlines();
  bool only_busy_ones_miss(const Round& round) const;
  void set_busy(Guest& guest, bool busy);
  void put_off(Round& round);  // its deadline, and what the waiting ranks count
  void fail(const Failure& failure);
  void tell_all(const Message& message);
  bool finished() const;
  std::string missing(const std::map<int, std::string>& there) const;

  const ProcessGroupOptions options_;
  const Clock::duration patience_;
  Clock::time_point looked_ = Clock::now(), now_ = looked_;  // now_: as if it had never been suspended
  const Clock::time_point join_by_;
  FileHandle listener_;
  WakeUp closing_;
  std::list<Guest> guests_;
  std::map<int, std::string> joined_;  // hellos by rank
  std::map<std::uint64_t, Round> rounds_;
  std::optional<RollCall> roll_call_;
  std::uint64_t roll_calls_ = 0;
  bool failed_ = false, closed_ = false;
  Clock::time_point end_by_ = Clock::time_point::max();  // once closing or failed
  std::thread thread_;
};

}  // namespace dp::process_group
