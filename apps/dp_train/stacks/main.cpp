// dp_stacks adds the stacks of all threads to the record of a crash. The crashed process starts it and waits
// (engine/observe/crash_record.cpp). It is a program of its own: a process cannot read its other threads, and libdw
// loads five libraries.
//
//   dp_stacks PROCESS THREAD FILE    THREAD: the one that crashed, or 0; FILE: of the record
#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kFrames = 48;  // of a thread
constexpr std::size_t kName = 160;   // bytes of a frame's text
constexpr std::size_t kRecord = std::size_t{1} << 16;
constexpr std::size_t kPrinted = 12;  // frames

struct Thread {
  pid_t id;
  std::vector<std::string> frames;  // the innermost first
};

struct Stacks {
  Dwfl* process;
  std::vector<Thread> threads{};
};

std::string plain_name(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                         &std::free);
  return name == nullptr ? symbol : name.get();
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// "dp::engine::Worker::forward(...) worker.cpp:123", or "libdp.so+0x1234" without symbols.
std::string describe(Dwfl* process, Dwarf_Addr at) {
  char text[64];
  Dwfl_Module* const module = ::dwfl_addrmodule(process, at);
  Dwarf_Addr begin = 0;
  const char* const path =
      module == nullptr ? nullptr
                        : ::dwfl_module_info(module, nullptr, &begin, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (path == nullptr) {
    std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(at));
    return text;
  }
  const char* const symbol = ::dwfl_module_addrname(module, at);
  if (symbol == nullptr) {
    std::snprintf(text, sizeof text, "+%#llx", static_cast<unsigned long long>(at - begin));
    return last_part(path) + text;
  }
  std::string name = plain_name(symbol);
  if (name.size() > kName) name = name.substr(0, kName - 3) + "...";
  Dwfl_Line* const line = ::dwfl_module_getsrc(module, at);
  int number = 0;
  const char* const source =
      line == nullptr ? nullptr : ::dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
  return source == nullptr ? name : name + " " + last_part(source) + ":" + std::to_string(number);
}

int add_frame(Dwfl_Frame* frame, void* to) {
  Stacks& stacks = *static_cast<Stacks*>(to);
  Dwarf_Addr at = 0;
  // True for the innermost frame, a signal's trampoline and the interrupted frame. Other frames have the address of
  // the next instruction.
  bool interrupted = false;
  if (!::dwfl_frame_pc(frame, &at, &interrupted)) return DWARF_CB_ABORT;
  std::vector<std::string>& frames = stacks.threads.back().frames;
  if (interrupted) frames.clear();  // of the signal handler
  frames.push_back(describe(stacks.process, interrupted ? at : at - 1));
  return frames.size() < kFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

int add_thread(Dwfl_Thread* thread, void* to) {
  Stacks& stacks = *static_cast<Stacks*>(to);
  stacks.threads.push_back({::dwfl_thread_tid(thread), {}});
  ::dwfl_thread_getframes(thread, add_frame, to);
  return DWARF_CB_OK;
}

// Empty if this process may not read the other one.
std::vector<Thread> stacks_of(pid_t process) {
  ::unsetenv("DEBUGINFOD_URLS");  // no downloads
  Dwfl_Callbacks callbacks{};
  callbacks.find_elf = ::dwfl_linux_proc_find_elf;
  callbacks.find_debuginfo = ::dwfl_standard_find_debuginfo;
  const std::unique_ptr<Dwfl, decltype(&::dwfl_end)> dwfl(::dwfl_begin(&callbacks), &::dwfl_end);
  if (dwfl == nullptr || ::dwfl_linux_proc_report(dwfl.get(), process) != 0 ||
      ::dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0 ||
      ::dwfl_linux_proc_attach(dwfl.get(), process, /*assume_ptrace_stopped=*/false) != 0)
    return {};
  Stacks stacks{dwfl.get()};
  ::dwfl_getthreads(dwfl.get(), add_thread, &stacks);
  return stacks.threads;
}

std::string name_of_thread(pid_t process, pid_t thread) {
  std::ifstream from("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(from, name);
  return name;
}

std::string quoted(const std::string& text) {
  std::string all = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') all += '\\';
    all += c >= ' ' && c <= '~' ? c : '?';
  }
  return all + '"';
}

std::string json_of(const Thread& thread, const std::string& name) {
  std::string all = "{\"name\":" + quoted(name) + ",\"thread\":" + std::to_string(thread.id) + ",\"stack\":[";
  for (const std::string& frame : thread.frames) all += (&frame == thread.frames.data() ? "\n" : ",\n") + quoted(frame);
  return all + "]}";
}

// Replaces the addresses at the end of the record. Returns false if there is no record, because the run has no folder
// yet.
bool complete(const std::string& file, pid_t process, const std::vector<Thread>& threads) {
  std::ifstream from(file);
  std::string text{std::istreambuf_iterator<char>(from), {}};
  const std::size_t addresses = text.rfind("\"stack\":[");
  if (addresses == std::string::npos) return false;
  text.resize(addresses);
  text += "\"threads\":[";
  constexpr std::size_t kEnd = 64;  // bytes for what follows the last thread
  std::size_t count = 0;
  for (; count < threads.size(); ++count) {
    const std::string one = json_of(threads[count], name_of_thread(process, threads[count].id));
    if (text.size() + one.size() + kEnd > kRecord) break;
    text += (count > 0 ? ",\n" : "\n") + one;
  }
  text += "]";
  if (count < threads.size()) text += ",\"threads_left_out\":" + std::to_string(threads.size() - count);
  text += "}\n";
  const std::string beside = file + ".tmp";
  std::ofstream to(beside);
  to << text;
  to.close();
  std::error_code failed;
  if (to) std::filesystem::rename(beside, file, failed);
  if (!to || failed) std::filesystem::remove(beside, failed);
  return true;
}

void print(const Thread& thread, const std::string& name, const std::string& file) {
  std::string text = "dp: crashed in thread '" + name + "'" + (file.empty() ? "" : "; see " + file) + "\n";
  for (std::size_t i = 0; i < std::min(thread.frames.size(), kPrinted); ++i) text += "  " + thread.frames[i] + "\n";
  std::fputs(text.c_str(), stderr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("dp_stacks is started by a process of dp that crashes: dp_stacks PROCESS THREAD FILE\n", stderr);
    return 2;
  }
  const pid_t process = std::atoi(argv[1]), crashed = std::atoi(argv[2]);
  std::vector<Thread> threads = stacks_of(process);
  if (threads.empty()) return 1;
  std::ranges::stable_partition(threads, [&](const Thread& thread) { return thread.id == crashed; });
  const bool written = complete(argv[3], process, threads);
  if (threads.front().id == crashed) print(threads.front(), name_of_thread(process, crashed), written ? argv[3] : "");
  return 0;
}
