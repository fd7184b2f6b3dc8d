#include "child.h"

#include <dp/error.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace dp_bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPatience = 30;  // seconds for a program to end by itself, on a busy machine

// The environment without OpenMP settings, plus `more`: each program gets OpenMP settings of its own.
std::vector<std::string> environment(const std::vector<std::string>& more) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!text.starts_with("OMP_") && !text.starts_with("GOMP_") && !text.starts_with("KMP_")) variables.push_back(text);
  }
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& string : strings) out.push_back(string.data());
  out.push_back(nullptr);
  return out;
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::filesystem::path own_folder() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown)  // a relative path would start a program of the working folder
    throw dp::Error(dp::ErrorCode::usage, "cannot read /proc/self/exe to find other programs: " + unknown.message());
  return program.parent_path();
}

}  // namespace

std::string Reply::text(const std::string& key) const {
  const auto found = fields.find(key);
  return found == fields.end() ? std::string() : found->second;
}

double Reply::number(const std::string& key) const {
  const std::string value = text(key);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() && !value.empty() ? number : std::nan("");
}

Reply parse_reply(const std::string& line) {
  Reply reply;
  std::istringstream parts(line);
  std::getline(parts, reply.word, '\t');
  for (std::string part; std::getline(parts, part, '\t');)
    if (const auto at = part.find('='); at != std::string::npos) reply.fields[part.substr(0, at)] = part.substr(at + 1);
  return reply;
}

Child::Child(const std::vector<std::string>& words, const std::vector<std::string>& variables) : name_(words.front()) {
  ::signal(SIGPIPE, SIG_IGN);  // send() and read() detect a program that has ended
  if (const auto at = name_.rfind('/'); at != std::string::npos) name_ = name_.substr(at + 1);
  std::vector<std::string> argument_words = words, variable_words = environment(variables);
  const std::vector<char*> arguments = pointers(argument_words), settings = pointers(variable_words);
  std::array<int, 2> in{}, out{};
  err_ = ::memfd_create("stderr", MFD_CLOEXEC);
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 || err_ < 0)
    throw ChildError("cannot create a pipe for " + name_ + ": " + std::strerror(errno));
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ < 0) throw ChildError("cannot start " + name_ + ": " + std::strerror(errno));
  if (id_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    ::execvpe(arguments.front(), arguments.data(), settings.data());
    const char* const reason = std::strerror(errno);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, reason, std::strlen(reason));
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  in_ = in[1];
  out_ = out[0];
}

Child::~Child() {
  end_input();
  const auto start = Clock::now();
  while (id_ > 0 && ::waitpid(id_, nullptr, WNOHANG) == 0) {
    if (seconds_since(start) > kPatience) {
      ::kill(id_, SIGKILL);
      ::waitpid(id_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

void Child::end_input() {
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

void Child::send(const std::string& line) {
  const std::string text = line + '\n';
  if (::write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw ChildError(name_ + " ended: " + last_words());
}

bool Child::next_line(std::string& line, double timeout_seconds) {
  const auto start = Clock::now();
  while (true) {
    if (const auto at = buffer_.find('\n'); at != std::string::npos) {
      line = buffer_.substr(0, at);
      buffer_.erase(0, at + 1);
      return true;
    }
    if (timeout_seconds >= 0) {
      const double left = timeout_seconds - seconds_since(start);
      pollfd ready{out_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left * 1000) + 1) == 0)
        throw ChildError(name_ + " did not answer within " + std::to_string(static_cast<int>(timeout_seconds)) + " s");
    }
    std::array<char, 4096> part{};
    const ssize_t got = ::read(out_, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    buffer_.append(part.data(), static_cast<std::size_t>(got));
  }
}

Reply Child::read(double timeout_seconds) {
  std::string line;
  if (!next_line(line, timeout_seconds)) throw ChildError(name_ + " ended: " + last_words());
  Reply reply = parse_reply(line);
  if (reply.word == "error") throw ChildError(reply.text("message"));
  return reply;
}

int Child::wait() {
  int status = 0;
  ::waitpid(id_, &status, 0);
  id_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  throw ChildError(name_ + " failed: " + last_words());
}

std::string Child::last_words() const {
  std::string text(65536, '\0');
  const off_t size = ::lseek(err_, 0, SEEK_END);
  const off_t from = size > static_cast<off_t>(text.size()) ? size - static_cast<off_t>(text.size()) : 0;
  const ssize_t got = ::pread(err_, text.data(), text.size(), from);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  std::istringstream lines(text);
  std::string last = "it printed no message";
  for (std::string line; std::getline(lines, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return last;
}

double Child::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(id_) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto at = text.rfind(')');
  if (at == std::string::npos) return 0;
  std::istringstream words(text.substr(at + 1));
  std::string word;
  double user = 0, system = 0;
  for (int i = 0; i < 11; ++i) words >> word;
  words >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::vector<std::unique_ptr<Child>> start_ranks(const std::vector<std::string>& words, int ranks,
                                                double timeout_seconds) {
  std::vector<std::unique_ptr<Child>> started;
  std::string port = "0";
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> all = words;
    if (ranks > 1)
      all.insert(all.end(), {"--rank", std::to_string(rank), "--ranks", std::to_string(ranks), "--port", port});
    started.push_back(std::make_unique<Child>(all, std::vector<std::string>{}));
    if (ranks > 1 && rank == 0) port = started.front()->read(timeout_seconds).text("port");
  }
  return started;
}

void point_to_plugins() {
  const std::filesystem::path folder = (own_folder() / "../dp_train").lexically_normal();
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) ::setenv("DP_PLUGIN_PATH", folder.c_str(), 0);
}

std::string find_program(const std::string& name) {
  std::vector<std::filesystem::path> folders;
  if (const char* path = std::getenv("DP_BENCH_PATH"); path != nullptr && *path != '\0') {
    if (*path != '/')
      throw dp::Error(dp::ErrorCode::usage, "DP_BENCH_PATH is " + std::string(path) +
                                                ", which depends on the working folder; set an absolute path");
    folders.emplace_back(path);
  }
  std::error_code ignored;
  for (const char* place : {".", "../../benchmarks", "../lib/dp"})
    folders.push_back((own_folder() / place).lexically_normal());
  std::string places;
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
    places += (places.empty() ? "" : ", ") + folder.string();
  }
  throw dp::Error(dp::ErrorCode::usage, "program " + name + " not found in " + places +
                                            "; build it (cmake --build <build> --target " + name +
                                            ") or set DP_BENCH_PATH to its folder");
}

SharedFile::SharedFile() : file_(::memfd_create("dp_bench", MFD_CLOEXEC)) {
  if (file_ < 0)
    throw dp::Error(dp::ErrorCode::io, std::string("cannot create a file in memory: ") + std::strerror(errno));
}

SharedFile::~SharedFile() { ::close(file_); }

std::string SharedFile::path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_); }

double machine_cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  std::array<double, 8> ticks{};  // user nice system idle iowait irq softirq steal
  file >> word;
  for (double& value : ticks) file >> value;
  return (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace dp_bench
