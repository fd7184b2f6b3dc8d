// Peer access: a single probe process tests all pairs, once per boot. Each pair is enabled once.
#include "kernels/comm/p2p/peers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "kernels/tuning/tuning_cache.h"

using namespace dp;
using namespace dp::kernels::cuda;
using namespace dp::test;

namespace {

using Paths = std::vector<std::vector<PeerPath>>;

Paths all_direct(std::size_t devices) {
  Paths paths(devices, std::vector<PeerPath>(devices, PeerPath::direct));
  for (std::size_t device = 0; device < devices; ++device) paths[device][device] = PeerPath::same;
  return paths;
}

// The paths between all devices of the machine, and the number of probe processes.
struct Found {
  Paths paths;
  int programs;
};
Found find_out(int devices) {
  std::vector<int> all;
  for (int device = 0; device < devices; ++device) all.push_back(device);
  const int before = probe_programs_started();
  Paths paths = peer_paths(all);
  return {std::move(paths), probe_programs_started() - before};
}

std::vector<std::string> verdict_lines(const std::string& file) {
  std::vector<std::string> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Peer access in the probe process. In this process all pairs work.
void let_probe_find(const char* peers) { setenv("DP_SIMULATED_PEERS", peers, 1); }

std::string line_of(int reader, int owner, PeerPath verdict) {
  const auto bus = [](int device) { return "0000:0" + std::to_string(device + 1) + ":00.0 "; };
  return bus(reader) + bus(owner) + std::to_string(static_cast<int>(verdict));
}

}  // namespace

TEST_CASE("peers: one probe process tests all pairs of 8 GPUs, once") {
  SimulatedGpus machine(8);
  const Found first = find_out(8);
  CHECK(first.programs == 1);
  CHECK(first.paths == all_direct(8));
  CHECK(verdict_lines(verdict_file()).size() == 56);
  CHECK(find_out(8).programs == 0);
  CHECK(find_out(2).paths == all_direct(2));
}

TEST_CASE("peers: a pair that hangs is named, and a second probe tests the remaining pairs") {
  Found found;
  Paths expected = all_direct(4);
  expected[2][1] = PeerPath::hanging;
  // A slow probe looks like one that hangs, or ends the search. If that happens, try again with a longer limit.
  for (const char* const seconds : {"1", "8", "64"}) {
    SimulatedGpus machine(4);
    let_probe_find("all,2-1=hangs");
    setenv("DP_PEER_PROBE_SECONDS", seconds, 1);
    found = find_out(4);
    if (found.programs == 2 && found.paths == expected) break;
  }
  CHECK(found.paths == expected);
  CHECK(found.programs == 2);
  CHECK(describe_detours({0, 1, 2, 3}, found.paths) == "cuda:1 and cuda:2 through the host (peer access that hangs)");
}

TEST_CASE("peers: a pair that returns wrong data is named, and a pair at which the probe fails is left out") {
  SimulatedGpus machine(3);
  let_probe_find("all,0-2=corrupts,1-0=none");  // reads by 2 from 0 are corrupted; 1 cannot enable 0
  const Found found = find_out(3);
  Paths expected = all_direct(3);
  expected[2][0] = PeerPath::lying;
  expected[1][0] = PeerPath::unchecked;
  CHECK(found.paths == expected);
  CHECK(found.programs == 2);
  const std::vector<std::string> lines = verdict_lines(verdict_file());
  CHECK(lines.size() == 5);  // the failed pair has no line; the next process retries it
  CHECK(std::count(lines.begin(), lines.end(), line_of(2, 0, PeerPath::lying)) == 1);
}

TEST_CASE("peers: cached verdicts are read, and other lines of the file are ignored") {
  SimulatedGpus machine(3);
  append_line(verdict_file(), "a line of something else");
  append_line(verdict_file(), line_of(0, 1, PeerPath::hanging));
  append_line(verdict_file(), line_of(1, 0, static_cast<PeerPath>(77)));
  const Found two = find_out(2);
  CHECK(two.paths[0][1] == PeerPath::hanging);
  CHECK(two.paths[1][0] == PeerPath::direct);
  CHECK(two.programs == 1);  // for the pair without a verdict
  CHECK(find_out(3).programs == 1);
}

TEST_CASE("peers: a process that cannot write the cache probes once") {
  SimulatedGpus machine(2);
  std::ofstream(std::string(std::getenv("XDG_CACHE_HOME")) + "/dp") << "a file where the folder would be";
  const Found first = find_out(2);
  CHECK(first.paths == all_direct(2));
  CHECK(first.programs == 1);
  CHECK(find_out(2).programs == 0);
}

TEST_CASE("peers: a process waits while another one probes, and takes its verdicts") {
  SimulatedGpus machine(2);
  std::future<Found> found;
  {
    const FileLock other_process(verdict_file());
    found = std::async(std::launch::async, [] { return find_out(2); });
    CHECK(found.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
    for (const auto& [reader, owner] : {DevicePair{0, 1}, DevicePair{1, 0}})
      append_line(verdict_file(), line_of(reader, owner, PeerPath::lying));
  }
  const Found ours = found.get();
  CHECK(ours.programs == 0);
  CHECK(ours.paths[0][1] == PeerPath::lying);
  CHECK(ours.paths[1][0] == PeerPath::lying);
}

TEST_CASE("peers: if two processes start at once, one of them probes for both") {
  SimulatedGpus machine(4);
  const pid_t other = fork();
  const Found found = find_out(4);
  if (other == 0) _exit(found.paths == all_direct(4) ? found.programs : 99);
  int status = 0;
  REQUIRE(waitpid(other, &status, 0) == other);
  CHECK(found.paths == all_direct(4));
  CHECK(found.programs + WEXITSTATUS(status) == 1);
}

TEST_CASE("peers: each pair is enabled once per process") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  simt::simulation().log_blocking_calls = true;
  DataParallel first(model, on_gpus(2, 2));
  first.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  simt::take_blocking_calls();
  first.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  DataParallel second(model, on_gpus(2, 2));
  const std::vector<std::string> calls = simt::take_blocking_calls();
  simt::simulation().log_blocking_calls = false;
  CHECK(std::count(calls.begin(), calls.end(), "cudaMalloc on cuda:0") > 0);
  for (const char* const device : {"0", "1"})
    CHECK(std::count(calls.begin(), calls.end(), std::string("cudaDeviceEnablePeerAccess on cuda:") + device) == 0);
  second.train_step(random_batch(model, 8), Sgd{.lr = 0.01f});
  CHECK(second.replicas_identical());
}
