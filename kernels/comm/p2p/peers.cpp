#include "kernels/comm/p2p/peers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "kernels/device/cuda/runtime.h"
#include "kernels/device/cuda/stream.h"
#include "kernels/tuning/tuning_cache.h"

extern char** environ;

namespace dp::kernels::cuda {
namespace {

bool offered(int reader, int owner) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, reader, owner), "querying peer access");
  return can != 0;
}

struct EnabledPeers {
  std::mutex mutex;
  std::set<DevicePair> pairs;
};
EnabledPeers& enabled_peers() {
  static EnabledPeers enabled;
  return enabled;
}

// Another library in the process may already have enabled the pair.
void enable(int reader, int owner) {
  const std::scoped_lock lock(enabled_peers().mutex);
  if (enabled_peers().pairs.contains({reader, owner})) return;
  bind_device(reader);
  const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(error, "enabling peer access");
  enabled_peers().pairs.insert({reader, owner});
}

}  // namespace

const char* to_string(PeerPath path) {
  switch (path) {
    case PeerPath::same: return "same device";
    case PeerPath::direct: return "direct";
    case PeerPath::absent: return "no peer access";
    case PeerPath::lying: return "peer access that returns wrong data";
    case PeerPath::hanging: return "peer access that hangs";
    case PeerPath::unchecked: return "peer access that could not be checked";
  }
  return "unknown";
}

void forget_enabled_peers() {
  const std::scoped_lock lock(enabled_peers().mutex);
  enabled_peers().pairs.clear();
}

std::vector<std::vector<PeerPath>> peer_paths(const std::vector<int>& devices) {
  std::vector<std::vector<PeerPath>> paths(devices.size(), std::vector<PeerPath>(devices.size(), PeerPath::same));
  std::vector<DevicePair> pairs;
  std::vector<PeerPath*> places;
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner) {
      if (devices[reader] == devices[owner]) continue;
      paths[reader][owner] = PeerPath::absent;
      if (!offered(devices[reader], devices[owner])) continue;
      pairs.emplace_back(devices[reader], devices[owner]);
      places.push_back(&paths[reader][owner]);
    }
  const std::vector<PeerPath> probed = probed_paths(pairs);
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = probed[i];
  return paths;
}

std::vector<std::vector<PeerPath>> connect(const std::vector<int>& devices) {
  std::vector<std::vector<PeerPath>> paths = peer_paths(devices);
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner)
      if (paths[reader][owner] == PeerPath::direct) enable(devices[reader], devices[owner]);
  return paths;
}

std::string describe_detours(const std::vector<int>& devices, const std::vector<std::vector<PeerPath>>& paths) {
  std::string text;
  std::vector<std::pair<int, int>> described;
  for (std::size_t reader = 0; reader < devices.size(); ++reader)
    for (std::size_t owner = 0; owner < devices.size(); ++owner) {
      if (reads(paths[reader][owner])) continue;
      const std::pair<int, int> pair = std::minmax(devices[reader], devices[owner]);
      if (std::find(described.begin(), described.end(), pair) != described.end()) continue;
      described.push_back(pair);
      text += (text.empty() ? "" : ", ") + ("cuda:" + std::to_string(pair.first)) +
              " and cuda:" + std::to_string(pair.second) + " through the host (" + to_string(paths[reader][owner]) +
              ")";
    }
  return text;
}

// Runs dp_peer_probe and stores its verdicts.

namespace {

namespace fs = std::filesystem;

constexpr int kStartPatienceMs = 20'000;  // at least, until the first line: the program may start slowly

// Limit between two lines of output. The first context can take seconds on a large machine.
int patience_ms() {
  const char* const seconds = std::getenv("DP_PEER_PROBE_SECONDS");
  const double given = seconds == nullptr ? 0 : std::strtod(seconds, nullptr);
  return given > 0 && given < 1e6 ? static_cast<int>(1000 * given) : 20'000;
}

// In the folder of this library, or of the executable that contains this code.
std::string probe_program() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&probe_program), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path self = fs::canonical(info.dli_fname, error);
  if (error) return {};
  const fs::path beside = self.parent_path() / "dp_peer_probe";
  return fs::exists(beside, error) ? beside.string() : std::string();
}

std::atomic<int> programs_started{0};

// A running dp_peer_probe.
class Probe {
 public:
  Probe(const std::string& program, const std::vector<DevicePair>& pairs);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  enum class Heard { line, end, nothing };
  // Reads the next line. `end`: the program has ended. `nothing`: the time limit passed without output.
  Heard hear(std::string& line);

 private:
  pid_t child_ = 0;
  int out_ = -1;
  std::string heard_;
  bool started_ = false;  // it has printed something
};

Probe::Probe(const std::string& program, const std::vector<DevicePair>& pairs) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  std::vector<std::string> arguments{program};
  for (const auto& [reader, owner] : pairs) arguments.push_back(std::to_string(reader) + ":" + std::to_string(owner));
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  if (posix_spawn(&child_, program.c_str(), &files, nullptr, argv.data(), environ) != 0) child_ = 0;
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  out_ = ends[0];
  programs_started += child_ != 0;
}

// A killed process may hang in the driver, so this waits at most one second.
Probe::~Probe() {
  if (out_ >= 0) close(out_);
  if (child_ == 0) return;
  kill(child_, SIGKILL);
  for (int i = 0; i < 1000 && waitpid(child_, nullptr, WNOHANG) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Probe::Heard Probe::hear(std::string& line) {
  for (;;) {
    if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
      line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return Heard::line;
    }
    pollfd ready{out_, POLLIN, 0};
    int events;
    while ((events = poll(&ready, 1, started_ ? patience_ms() : std::max(patience_ms(), kStartPatienceMs))) < 0 &&
           errno == EINTR) {
    }
    if (events == 0) return Heard::nothing;
    char text[256];
    const ssize_t count = read(out_, text, sizeof text);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Heard::end;
    heard_.append(text, static_cast<std::size_t>(count));
    started_ = true;
  }
}

// Calls settle(pair, verdict) for each tried pair. If the program hangs or fails at a pair, starts another one for the
// remaining pairs. If it fails before it tries a pair, stops.
template <typename Settle>
void probe(const std::string& program, std::list<DevicePair> pairs, const Settle& settle) {
  while (!pairs.empty()) {
    Probe running(program, {pairs.begin(), pairs.end()});
    std::optional<DevicePair> tried;
    const auto found = [&](PeerPath verdict) {
      settle(*tried, verdict);
      pairs.remove(*tried);
      tried.reset();
    };
    Probe::Heard heard;
    for (std::string line; (heard = running.hear(line)) == Probe::Heard::line;) {
      int reader = 0, owner = 0, verdict = 0;
      if (std::sscanf(line.c_str(), kProbeTries, &reader, &owner) == 2)
        tried = {reader, owner};
      else if (std::sscanf(line.c_str(), kProbeVerdict, &reader, &owner, &verdict) == 3 && tried)
        found(static_cast<PeerPath>(verdict));
    }
    if (!tried) return;
    found(heard == Probe::Heard::nothing ? PeerPath::hanging : PeerPath::unchecked);
  }
}

std::string bus_id(int device) {
  char text[32] = "";
  check(cudaDeviceGetPCIBusId(text, sizeof text, device), "reading the bus id");
  return text;
}

// One verdict per line: "<reader's bus id> <owner's bus id> <verdict>".
using Verdicts = std::map<std::string, PeerPath>;

Verdicts read_verdicts(const std::string& file) {
  Verdicts verdicts;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string reader, owner;
    int verdict = 0;
    if (!(words >> reader >> owner >> verdict)) continue;
    if (verdict == static_cast<int>(PeerPath::direct) || verdict == static_cast<int>(PeerPath::lying) ||
        verdict == static_cast<int>(PeerPath::hanging))
      verdicts[reader + " " + owner] = static_cast<PeerPath>(verdict);
  }
  return verdicts;
}

}  // namespace

std::string verdict_file() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string folder = cache_folder();
  return boot.empty() || folder.empty() ? std::string() : folder + "/peers-" + boot;
}

int probe_programs_started() { return programs_started; }

std::vector<PeerPath> probed_paths(const std::vector<DevicePair>& pairs) {
  static std::mutex one_at_a_time;
  static std::map<std::string, Verdicts> of_process;  // by file; includes verdicts that no file holds
  const std::scoped_lock lock(one_at_a_time);
  const std::string file = verdict_file();
  Verdicts& known = of_process[file];
  const auto name_of = [](const DevicePair& pair) { return bus_id(pair.first) + " " + bus_id(pair.second); };
  const auto unknown = [&] {
    std::vector<DevicePair> left;
    for (const DevicePair& pair : pairs)
      if (!known.contains(name_of(pair)) && std::find(left.begin(), left.end(), pair) == left.end())
        left.push_back(pair);
    return left;
  };
  if (!unknown().empty()) {
    const FileLock others(file);
    known.merge(read_verdicts(file));
    const std::string program = probe_program();
    if (const std::vector<DevicePair> left = unknown(); !left.empty() && !program.empty())
      probe(program, {left.begin(), left.end()}, [&](const DevicePair& pair, PeerPath verdict) {
        known[name_of(pair)] = verdict;
        if (verdict != PeerPath::unchecked && !file.empty())
          append_line(file, name_of(pair) + " " + std::to_string(static_cast<int>(verdict)));
      });
    for (const DevicePair& pair : unknown()) known[name_of(pair)] = PeerPath::unchecked;
  }
  std::vector<PeerPath> verdicts;
  for (const DevicePair& pair : pairs) verdicts.push_back(known.at(name_of(pair)));
  return verdicts;
}

}  // namespace dp::kernels::cuda
