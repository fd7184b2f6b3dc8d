// Runs dp_train and collects its exit status, output and peak memory.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dp::test {

struct Outcome {
  int code = -1;   // exit status, or -1
  int signal = 0;  // the signal that ended it, or 0
  std::string out, err;
  std::size_t peak_bytes = 0;
};

// A started program in `folder`, without visible GPUs.
class Program {
 public:
  enum class Group { of_the_test, own };  // own: its own process group, like a shell's job
  Program(const std::vector<std::string>& arguments, const std::string& folder,
          const std::vector<std::string>& variables = {},  // "NAME=value"
          const std::vector<std::string>& launcher = {},   // words before the program's own; a path first
          Group group = Group::of_the_test);
  pid_t id() const { return id_; }
  std::string wait_for(const std::string& text);  // reads stdout until it contains the text or ends; returns it
  std::string wait_for_error(const std::string& text) const;  // polls stderr for the text, at most kPatience
  std::string error() const;                                  // what it has written to stderr so far
  void close_output();                                        // like a pager that quits
  // Until this process, or each of so many that it starts, has a thread for signals; at most kPatience.
  void wait_until_signals_are_handled(int children = 0) const;
  void stop() const;                       // by SIGSTOP; returns when all its threads have stopped
  bool has_ended() const;                  // does not read its output
  bool ends_within(double seconds) const;  // adds kPatience
  Outcome wait();

 private:
  pid_t id_ = -1;
  int out_ = -1;
  std::string read_;
  std::string err_file_;
};

using Words = std::vector<std::string>;

// Holds a program in a stall of DP_FAIL (DP_FAIL_GATE in docs/reference/failpoints.md).
class StallGate {
 public:
  explicit StallGate(std::string path) : path_(std::move(path)) {}
  std::string variable() const { return "DP_FAIL_GATE=" + path_; }
  void wait_for(int replica = 0) const;  // until its stall has begun, at most kPatience
  void open() const;                     // ends every stall, also those to come
  void end_one(int replica = 0) const;   // ends the stall that has begun

 private:
  std::string path_;
};

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Two replicas in one process, and two ranks.
const Words kDp{"--cpu", "2", "--threads-per-replica", "1"};
const Words kDdp{"--engine", "ddp", "--cpu", "2"};

Outcome run_dp_train(const std::vector<std::string>& arguments, const std::string& folder);
// Runs under `ulimit -v`. Does not work for sanitizer builds.
Outcome run_under_limit(const std::string& kibibytes, const std::vector<std::string>& arguments,
                        const std::string& folder);

// One row of a table of bad inputs.
struct BadInput {
  std::vector<std::string> arguments;
  int code = 2;
  std::vector<std::string> fragments;  // contained in the one line on stderr
  // Size of the input file. Peak memory may grow by twice this size plus 64 MiB.
  std::size_t file_bytes = 0;
};
void check_bad_input(const BadInput& input, const std::string& folder);

}  // namespace dp::test
