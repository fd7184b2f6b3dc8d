#include "engine/observe/crash_record.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <string_view>
#include <typeinfo>

#include "dp/crash_record.h"
#include "dp/error.h"
#include "kernels/device/trace_ring.h"

// Code that runs in a signal handler allocates nothing and calls only async-signal-safe functions, with two exceptions.
// backtrace() is safe after its first call. dladdr() may wait for a thread that is loading a library.

namespace dp {
namespace engine {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 16;  // of a record
constexpr std::size_t kMostDetails = std::size_t{1} << 15;
constexpr std::size_t kPath = 4096;
constexpr double kStacksSeconds = 10;  // for dp_stacks after a crash
constexpr timespec kNap{0, 10'000'000};

struct Recorded {
  std::atomic<const Progress*> progress;
  std::atomic<int> replica, stage;
};

std::array<Recorded, 256> replicas;
std::array<char, kMostDetails> details;  // JSON
std::atomic<std::size_t> details_size{0};
std::array<char, kPath> file, stacks_program;  // end with a zero
std::atomic<bool> enabled{false};
std::atomic<int> recording{0};             // the thread that writes the record
std::array<char, 512> uncaught{};          // what std::terminate() was called for
std::array<char, kMostBytes> text_memory;  // of the record

// JSON text in fixed memory. Text beyond its end is left out.
class Text {
 public:
  explicit Text(std::size_t most) : most_(most) {}

  Text& raw(std::string_view text) {
    const std::size_t count = std::min(text.size(), most_ - size_);
    std::memcpy(text_memory.data() + size_, text.data(), count);
    size_ += count;
    return *this;
  }
  Text& number(std::int64_t value) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return raw({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  Text& string(std::string_view text) {
    raw("\"");
    for (const char c : text) {
      const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
      raw(plain ? std::string_view(&c, 1) : "?");
    }
    return raw("\"");
  }
  Text& hexadecimal(std::uintptr_t value) {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
    return raw("0x").raw({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }
  std::size_t left() const { return most_ - size_; }
  std::size_t size() const { return size_; }
  void limit(std::size_t most) { most_ = most; }

 private:
  std::size_t size_ = 0, most_;
};

// "libdp.so+0x1234"
void add_place(Text& text, const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    text.raw("\"").hexadecimal(reinterpret_cast<std::uintptr_t>(address)).raw("\"");
    return;
  }
  const std::string_view path = info.dli_fname;
  text.raw("\"").raw(path.substr(path.rfind('/') + 1)).raw("+");
  text.hexadecimal(reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  text.raw("\"");
}

// Microseconds before the record.
void add_age(Text& text, std::int64_t at, std::int64_t now) { text.raw(",\"us_ago\":").number((now - at) / 1000); }

void add_replica(Text& text, const Recorded& recorded, const Progress& progress, std::size_t most_bytes) {
  const std::int64_t now = kernels::trace_clock();
  text.raw("{\"replica\":").number(recorded.replica.load());
  if (const int stage = recorded.stage.load(); stage >= 0) text.raw(",\"stage\":").number(stage);
  text.raw(",\"phase\":").string(to_string(progress.phase()));
  text.raw(",\"recent\":[");
  const std::size_t begin = text.size();
  constexpr std::size_t kMostOfOne = 400;  // bytes
  const std::size_t count = progress.begun();
  for (std::size_t i = 0; i < std::min(count, Progress::kRecent); ++i) {
    if (text.size() - begin + kMostOfOne > most_bytes) break;
    const Begun begun = progress.begun(count - 1 - i);
    if (begun.name == nullptr) break;
    text.raw(i > 0 ? ",\n{" : "\n{").raw("\"step\":").number(begun.step);
    text.raw(",\"phase\":").string(to_string(begun.phase));
    text.raw(",\"name\":").string(std::string_view(begun.name, ::strnlen(begun.name, 200)));
    if (begun.bucket >= 0) text.raw(",\"bucket\":").number(begun.bucket);
    text.raw(",\"bytes\":").number(begun.bytes);
    add_age(text, begun.at, now);
    text.raw("}");
  }
  text.raw("]}");
}

void add_replicas(Text& text) {
  std::size_t count = 0;
  for (const Recorded& recorded : replicas) count += recorded.progress.load() != nullptr;
  text.raw("\"replicas\":[");
  const std::size_t most_of_one = text.left() / std::max<std::size_t>(count, 1);
  bool first = true;
  for (const Recorded& recorded : replicas) {
    const Progress* const progress = recorded.progress.load();
    if (progress == nullptr || most_of_one < 1000) continue;
    text.raw(first ? "\n" : ",\n");
    add_replica(text, recorded, *progress, most_of_one - 500);
    first = false;
  }
  text.raw("]");
}

void write_whole(int to, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(to, data, size);
    if (count <= 0) return;
    data += count, size -= static_cast<std::size_t>(count);
  }
}

// `thread`: the one that crashed, or 0.
void write_record(std::string_view what, std::uintptr_t address, pid_t thread) {
  constexpr std::size_t kStackBytes = 8192;  // for what follows the replicas
  Text text(kMostBytes - kStackBytes);
  text.raw("{\"what\":").string(what);
  if (address != 0) text.raw(",\"address\":\"").hexadecimal(address).raw("\"");
  text.raw(",\n\"time\":").number(::time(nullptr)).raw(",\"process\":").number(::getpid());
  text.raw(",\"thread\":").number(thread);
  text.raw(",\n\"run\":");
  const std::size_t size = details_size.load(std::memory_order_acquire);
  text.raw(size > 0 ? std::string_view(details.data(), size) : "null").raw(",\n");
  add_replicas(text);
  text.limit(kMostBytes);
  text.raw(",\n\"stack\":[");
  std::array<void*, 64> frames{};
  const int count = thread != 0 ? ::backtrace(frames.data(), static_cast<int>(frames.size())) : 0;
  for (int i = 0; i < count && text.left() > 300; ++i) {
    text.raw(i > 0 ? "," : "");
    add_place(text, frames[static_cast<std::size_t>(i)]);
  }
  text.raw("]}\n");
  const int to = ::open(file.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (to < 0) return;  // the run has no folder yet
  write_whole(to, text_memory.data(), text.size());
  ::close(to);
}

std::array<char, 16> decimal(pid_t number) {
  std::array<char, 16> digits{};
  std::to_chars(digits.data(), digits.data() + digits.size() - 1, number);
  return digits;
}

// Runs dp_stacks, which reads this process, completes the record and prints the stack. Returns whether it did.
bool add_stacks(pid_t thread, double seconds) {
  if (stacks_program.front() == '\0') return false;
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  std::array<char, 16> process = decimal(::getpid()), crashed = decimal(thread);
  std::array<char*, 5> arguments{stacks_program.data(), process.data(), crashed.data(), file.data(), nullptr};
  const pid_t child = ::_Fork();
  if (child == 0) {
    ::execve(stacks_program.data(), arguments.data(), environ);
    ::_exit(127);
  }
  for (double slept = 0; child > 0 && slept < seconds; slept += 0.01) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status == 0;
    if (ended < 0 && errno == ECHILD) return true;  // SIGCHLD is ignored
    ::nanosleep(&kNap, nullptr);
  }
  if (child > 0) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
  return false;
}

void print_crash(std::string_view what) {
  Text text(kMostBytes);
  text.raw("dp: crashed: ").string(what);
  if (::access(file.data(), F_OK) == 0) text.raw("; see ").raw(file.data());
  text.raw("\n");
  write_whole(STDERR_FILENO, text_memory.data(), text.size());
}

const char* name_of(int number) {
  switch (number) {
    case SIGSEGV: return "SIGSEGV (invalid memory reference)";
    case SIGBUS: return "SIGBUS (memory that cannot be accessed)";
    case SIGFPE: return "SIGFPE (erroneous arithmetic)";
    case SIGILL: return "SIGILL (illegal instruction)";
    default: return "SIGABRT (abort)";
  }
}

void handle(int number, siginfo_t* info, void*) {
  const pid_t self = ::gettid();
  int other = 0;
  // Waits while another thread writes a record. After a crash that thread ends the process. After a stall this one goes
  // on.
  while (!recording.compare_exchange_strong(other, self) && other != self) other = 0, ::nanosleep(&kNap, nullptr);
  if (other != self) {
    const bool exception = number == SIGABRT && uncaught.front() != '\0';
    const bool has_address = number != SIGABRT && info->si_code > 0;
    const char* const what = exception ? uncaught.data() : name_of(number);
    write_record(what, has_address ? reinterpret_cast<std::uintptr_t>(info->si_addr) : 0, self);
    if (!add_stacks(self, kStacksSeconds)) print_crash(what);
  }
  std::signal(number, SIG_DFL);
  ::raise(number);  // is delivered when this handler returns
}

[[noreturn]] void terminate() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  try {
    if (type != nullptr) throw;
    std::snprintf(uncaught.data(), uncaught.size(), "std::terminate() without an exception");
  } catch (const std::exception& error) {
    std::snprintf(uncaught.data(), uncaught.size(), "uncaught exception: %s", error.what());
  } catch (...) {
    std::snprintf(uncaught.data(), uncaught.size(), "uncaught exception of type %s", type->name());
  }
  std::abort();
}

}  // namespace

InCrashRecord::InCrashRecord(const Progress& progress, int replica, int stage) {
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const Progress* free = nullptr;
    if (!replicas[i].progress.compare_exchange_strong(free, &progress)) continue;
    replicas[i].replica.store(replica);
    replicas[i].stage.store(stage);
    place_ = static_cast<int>(i);
    return;
  }
}

InCrashRecord::~InCrashRecord() {
  if (place_ >= 0) replicas[static_cast<std::size_t>(place_)].progress.store(nullptr);
}

void describe_run_in_crash_record(const std::string& json) {
  details_size.store(0);
  if (json.size() > details.size()) return;
  std::memcpy(details.data(), json.data(), json.size());
  details_size.store(json.size(), std::memory_order_release);
}

void record_stall(const std::string& what, double seconds) {
  int none = 0;
  if (!enabled.load() || !recording.compare_exchange_strong(none, ::gettid())) return;
  write_record(what, 0, 0);
  add_stacks(0, seconds);
  recording.store(0);
}

}  // namespace engine

void record_crashes(const CrashRecordOptions& options) {
  using namespace engine;
  if (std::max(options.file.size(), options.stacks_program.size()) >= kPath)
    throw Error(ErrorCode::usage, "record_crashes: a path has more than 4,095 bytes");
  enabled.store(false);
  std::memcpy(file.data(), options.file.c_str(), options.file.size() + 1);
  std::memcpy(stacks_program.data(), options.stacks_program.c_str(), options.stacks_program.size() + 1);
  enabled.store(true);
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // the first call loads a library
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(number, &action, nullptr);
  std::set_terminate(terminate);
}

}  // namespace dp
