// Measured programs: where they are, and each as a child process with commands in, replies out and CPU time.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dp_bench {

// One output line of a measured program: a word and key=value fields, separated by tabs.
struct Reply {
  std::string word;
  std::map<std::string, std::string> fields;
  std::string text(const std::string& key) const;  // empty when there is none
  double number(const std::string& key) const;     // NaN when there is none
};
Reply parse_reply(const std::string& line);

// A failure of a measured program. The text becomes the note of its row.
struct ChildError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Child {
 public:
  // Environment: this process's without OpenMP settings, plus `variables` ("NAME=value"). The kernel kills the program
  // when this process ends.
  Child(const std::vector<std::string>& words, const std::vector<std::string>& variables);
  ~Child();  // closes stdin, waits up to 30 s, then kills the program
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(const std::string& line);
  void end_input();  // closes stdin; a program that waits for commands then ends
  // Reads the next line. ChildError if the program ends, times out, or replies `error`.
  Reply read(double timeout_seconds);
  // Calls line(text) for each output line until the program ends. ChildError if its exit status is not 0.
  template <typename Line>
  int read_all(const Line& line) {
    std::string text;
    while (next_line(text, -1)) line(text);
    return wait();
  }
  double cpu_seconds() const;  // of all its threads
  pid_t id() const { return id_; }

 private:
  bool next_line(std::string& line, double timeout_seconds);  // false at the end of output
  int wait();
  std::string last_words() const;  // last non-blank line of stderr

  std::string name_;
  pid_t id_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string buffer_;
};

// Starts `ranks` processes of one program. Several get --rank, --ranks and the --port of rank 0; a single one gets no
// such flags. Does not wait for their `ready` lines. ChildError.
std::vector<std::unique_ptr<Child>> start_ranks(const std::vector<std::string>& words, int ranks,
                                                double timeout_seconds);

// The path of a measured program or script. Searches DP_BENCH_PATH, this program's folder, ../../benchmarks (build
// tree) and ../lib/dp. dp::Error(usage) with the searched folders.
std::string find_program(const std::string& name);

// Sets DP_PLUGIN_PATH to dp_train's folder, for this process and its children, unless it is set. In the build tree the
// plugins are there, and not in the folder of the program that loads them.
void point_to_plugins();

// An anonymous file in memory for child processes. The kernel frees it once no process has it open.
class SharedFile {
 public:
  SharedFile();  // dp::Error(io)
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  std::string path() const;  // for other processes, valid during the lifetime of this object

 private:
  int file_;
};

// CPU seconds used on this machine so far by all processes, including time stolen by a hypervisor.
double machine_cpu_seconds();

}  // namespace dp_bench
