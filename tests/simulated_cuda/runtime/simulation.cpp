#include "simulated_cuda/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "simulated_cuda/driver_lock.h"
#include "simulated_cuda/emulator/detector.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/errors.h"
#include "simulated_cuda/runtime/pinned_memory.h"
#include "simulated_cuda/streams/capture.h"
#include "simulated_cuda/streams/graph_exec.h"
#include "simulated_cuda/streams/launch_log.h"
#include "simulated_cuda/streams/stream.h"

namespace dp::simt {

Detector* detector = nullptr;

namespace {

template <class Choice>
using Names = std::initializer_list<std::pair<const char*, Choice>>;

template <class Choice>
void choose(const char* variable, Choice& choice, Names<Choice> names) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return;
  for (const auto& [name, meaning] : names)
    if (std::strcmp(value, name) == 0) choice = meaning;
}

// "all,0-1=hangs": first the value for all pairs, then exceptions from-to.
void choose_peers(const char* variable, Simulation& made) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return;
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, ',');) {
    int from = -1, to = -1;
    const std::size_t equal = word.find('=');
    if (std::sscanf(word.c_str(), "%d-%d=", &from, &to) == 2) word.erase(0, equal + 1);
    for (const auto& [name, peer] :
         Names<Peer>{{"all", Peer::works}, {"none", Peer::none}, {"corrupts", Peer::corrupts}, {"hangs", Peer::hangs}})
      if (word == name) from < 0 ? made.set_peers(peer) : void(made.peers.at(from).at(to) = peer);
  }
}

// Lists the remaining devices in the order of CUDA_VISIBLE_DEVICES. As in CUDA, a missing device hides those after it.
void choose_visible(Simulation& made) {
  const char* const lost_file = std::getenv("DP_SIMULATED_LOST");
  const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> lost, left;
  std::ifstream file(lost_file == nullptr ? "" : lost_file);
  for (int number = 0; file >> number;) lost.push_back(number);
  for (int number = 0; number < made.devices; ++number)
    if (std::ranges::find(lost, number) == lost.end()) left.push_back(number);
  if (chosen != nullptr && std::strncmp(chosen, "GPU-", 4) == 0) {
    std::istringstream words(chosen);
    for (std::string word; std::getline(words, word, ',');) {
      int number = -1;
      std::sscanf(word.c_str(), "GPU-%2x", reinterpret_cast<unsigned*>(&number));
      if (std::ranges::find(left, number - 1) == left.end()) break;
      made.visible.push_back(number - 1);
    }
  } else {
    made.visible = left;
  }
  made.devices = static_cast<int>(made.visible.size());
}

Simulation from_environment() {
  Simulation made;
  if (const char* const gpus = std::getenv("DP_SIMULATED_GPUS"))
    made.devices = std::min(std::max(std::atoi(gpus), 0), kMaxDevices);
  choose_visible(made);
  if (const char* const seed = std::getenv("DP_SIMULATED_SEED")) made.seed = static_cast<unsigned>(std::atoi(seed));
  choose_peers("DP_SIMULATED_PEERS", made);
  choose<ThreadOrder>(
      "DP_SIMULATED_ORDER", made.order,
      {{"forward", ThreadOrder::forward}, {"reverse", ThreadOrder::reverse}, {"random", ThreadOrder::random}});
  choose<AsyncCopy>("DP_SIMULATED_ASYNC_COPY", made.async_copy,
                    {{"eager", AsyncCopy::eager}, {"lazy", AsyncCopy::lazy}, {"random", AsyncCopy::random}});
  if (const char* const blocks = std::getenv("DP_SIMULATED_RESIDENT_BLOCKS"))
    made.resident_blocks = static_cast<unsigned>(std::max(std::atoi(blocks), 1));
  choose<MmaSums>("DP_SIMULATED_MMA", made.mma_sums,
                  {{"as_measured", MmaSums::as_measured}, {"in_order", MmaSums::in_order}});
  failing_cuda_call.arm(dp::test::nth_to_fail("cuda"));
  failing_nccl_call.arm(dp::test::nth_to_fail("nccl"));
  return made;
}

}  // namespace

void Simulation::set_peers(Peer peer) {
  for (auto& row : peers) row.fill(peer);
}

// The limits of the CUDA programming guide by compute capability: per multiprocessor, less 1 KiB from sm_80 on.
std::size_t Simulation::most_shared_memory() const {
  if (shared_memory_per_block != 0) return shared_memory_per_block;
  if (compute_capability < 75) return 96 * 1024;
  if (compute_capability < 80) return 64 * 1024;
  if (compute_capability == 86 || compute_capability == 89 || compute_capability >= 120) return 99 * 1024;
  return (compute_capability < 90 ? 163 : 227) * 1024;
}

Simulation& simulation() {
  static Simulation settings = from_environment();
  return settings;
}

void reset() {
  free_destroyed_graphs(true);
  forget_captures();
  forget_launches();
  forget_streams_and_events();
  for (int i = 0; i < kMaxDevices; ++i) {
    device(i).memory.release_all();
    device(i).sticky = cudaSuccess;
    device(i).loaded.clear();
    for (auto& reaches : device(i).reaches) reaches = false;
  }
  release_all_pinned();
  if (detector != nullptr) detector->forget();
  set_current_device(0);
  forget_reports();
  forget_driver();
  cudaGetLastError();
  simulation() = from_environment();
}

Live live() {
  free_destroyed_graphs(false);
  Live now{.allocations = 0,
           .bytes = 0,
           .pinned = pinned_count(),
           .streams = live_streams(),
           .urgent_streams = live_urgent_streams(),
           .events = live_events(),
           .graphs = live_graphs()};
  for (int i = 0; i < kMaxDevices; ++i) {
    now.allocations += device(i).memory.count();
    now.bytes += device(i).memory.used();
  }
  return now;
}

bool detects_races() { return detector != nullptr; }

}  // namespace dp::simt
