// Runs dp_train and looks at what it leaves: exit status, output, peak memory.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace dp::test {

struct Outcome {
  int code = -1;   // exit status, or -1
  int signal = 0;  // that ended it, or 0
  std::string out, err;
  std::size_t peak_bytes = 0;
};

// A started program. Without a visible GPU, in `folder`.
class Program {
 public:
  enum class Group { of_the_test, own };  // own: as a job of a shell
  Program(const std::vector<std::string>& arguments, const std::string& folder,
          const std::vector<std::string>& variables = {},  // "NAME=value"
          const std::vector<std::string>& launcher = {},   // the words before the program's own, a path first
          Group group = Group::of_the_test);
  pid_t id() const { return id_; }
  std::string wait_for(const std::string& text);  // reads stdout until it holds that text or ends; what was read so far
  std::string wait_for_error(const std::string& text) const;  // polls stderr for that text, ten seconds at most
  void close_output();                                        // as a pager that was quit
  void wait_until_signals_are_handled() const;                // by the thread for them; ten seconds at most
  bool has_ended() const;                                     // without reading what it prints
  bool ends_within(double seconds) const;                     // and kPatience
  Outcome wait();

 private:
  pid_t id_ = -1;
  int out_ = -1;
  std::string read_;
  std::string err_file_;
};

using Words = std::vector<std::string>;

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Outcome run_dp_train(const std::vector<std::string>& arguments, const std::string& folder);
// Under `ulimit -v`; the sanitizers' programs can not run so.
Outcome run_under_limit(const std::string& kibibytes, const std::vector<std::string>& arguments,
                        const std::string& folder);

// One row of a table of bad inputs.
struct BadInput {
  std::vector<std::string> arguments;
  int code = 2;
  std::vector<std::string> fragments;  // in the one line on stderr
  std::size_t file_bytes = 0;          // of what is read; the peak memory may grow by twice that and 64 MiB
};
void check_bad_input(const BadInput& input, const std::string& folder);

}  // namespace dp::test
