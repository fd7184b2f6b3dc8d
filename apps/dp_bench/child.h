// A measured program: orders in, answers out, and how much processor time it takes.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dp_bench {

// A line of a measured program: a word and key=value fields, separated by tabs.
struct Reply {
  std::string word;
  std::map<std::string, std::string> fields;
  std::string text(const std::string& key) const;  // empty when there is none
  double number(const std::string& key) const;     // NaN when there is none
};
Reply parse_reply(const std::string& line);

// What is wrong with a measured program, for the note of its row.
struct ChildError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Child {
 public:
  // `variables` ("NAME=value") come over the environment without its OpenMP settings. The program ends when this one does.
  Child(const std::vector<std::string>& words, const std::vector<std::string>& variables);
  ~Child();  // closes its input, waits a little, kills it
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(const std::string& line);
  void end_input();  // a program that waits for orders ends then
  // The next line; ChildError when it ends or says nothing in time, or when its word is `error`.
  Reply read(double timeout_seconds);
  // Everything until it ends, each line handed to `line`. Returns its exit status.
  template <typename Line>
  int read_all(const Line& line) {
    std::string text;
    while (next_line(text, -1)) line(text);
    return wait();
  }
  double cpu_seconds() const;  // of all its threads so far
  pid_t id() const { return id_; }

 private:
  bool next_line(std::string& line, double timeout_seconds);  // false at the end
  int wait();
  std::string last_words() const;  // of stderr

  std::string name_;
  pid_t id_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string buffer_;
};

// So many processes of one program, told which rank they are and where to meet; a single one is told nothing. They have still to
// say that they are ready. ChildError.
std::vector<std::unique_ptr<Child>> start_ranks(const std::vector<std::string>& words, int ranks,
                                                double timeout_seconds);

// Processor time that anything on this machine has used so far; what a hypervisor took counts too.
double machine_cpu_seconds();

}  // namespace dp_bench
