#include "devices.h"

#include <dp/default_devices.h>
#include <dp/error.h>
#include <dp/launch.h>
#include <dp/shell.h>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "command.h"

namespace dp_train {
namespace {

constexpr int kMostGpus = 1024;  // larger ids are rejected on every host

[[noreturn]] void no_gpu(const std::string& flag, const std::string& reason) {
  throw dp::Error(dp::ErrorCode::device, flag + ": no usable GPU: " + reason + "; use --cpu N");
}

std::vector<int> gpu_ids(const std::string& text, const dp::DeviceProbe& probe) {
  if (probe.count > 0) return dp::parse_gpu_list(text, probe.count);
  try {
    if (text != "all") dp::parse_gpu_list(text, kMostGpus);
  } catch (const dp::Error&) {
    return dp::parse_gpu_list(text, 0);  // malformed on every host: throws with the visible GPUs
  }
  no_gpu("--gpus " + text, probe.reason);
}

std::vector<int> first_gpus(int count, const dp::DeviceProbe& probe) {
  if (probe.count == 0) no_gpu("--num-gpus " + std::to_string(count), probe.reason);
  if (count > probe.count)
    throw dp::Error(dp::ErrorCode::usage, "--num-gpus " + std::to_string(count) + ": " + std::to_string(probe.count) +
                                              (probe.count == 1 ? " GPU is" : " GPUs are") + " visible; give at most " +
                                              std::to_string(probe.count));
  std::vector<int> ids;
  for (int id = 0; id < count; ++id) ids.push_back(id);
  return ids;
}

Devices choose_once(const Command& command) {
  if (command.cpu) return {dp::cpus(*command.cpu), ""};
  const dp::DeviceProbe probe = dp::probe_devices(dp::DeviceKind::cuda);
  if (command.gpus) return {dp::gpus(gpu_ids(*command.gpus, probe)), ""};
  if (command.num_gpus) return {dp::gpus(first_gpus(*command.num_gpus, probe)), ""};
  const std::string no_gpu_text =
      "No usable GPU (" + probe.reason + "): training on 2 CPU replicas; set another number with --cpu N";
  try {
    std::vector<dp::Device> list = dp::default_devices();
    const bool gpus = list.front().kind == dp::DeviceKind::cuda;
    return {std::move(list), gpus ? "" : no_gpu_text};
  } catch (const dp::Error&) {
    return {dp::cpus(2), "", no_gpu_text};
  }
}

}  // namespace

Devices choose_devices(const Command& command) {
  Devices devices = choose_once(command);
  std::vector<dp::Device> repeated;
  for (const dp::Device device : devices.list)
    repeated.insert(repeated.end(), static_cast<std::size_t>(command.replicas_per_device), device);
  devices.list = std::move(repeated);
  return devices;
}

std::string device_options(const Command& command) {
  std::string options;
  for (const char* const name : {"gpus", "num-gpus", "cpu", "replicas-per-device", "engine"})
    if (const auto given = command.given.find(name); given != command.given.end())
      options += (options.empty() ? "--" : " --") + given->first + " " + dp::shell_argument(dp::to_text(given->second));
  return options;
}

namespace {

constexpr int kDefaultPort = 29500;  // torchrun's

}  // namespace

void fit_to_layout(Devices& devices, const Command& command) {
  const int stages = command.trainer.parallel.pipeline.stages, shards = command.trainer.parallel.logical_shards;
  const int each = command.replicas_per_device, gpus = static_cast<int>(devices.list.size()) / each;
  const auto fits = [&](int some) {
    return some * each % stages == 0 && (shards == 0 || shards % (some * each / stages) == 0);
  };
  int most = gpus;
  while (most > 0 && !fits(most)) --most;
  const std::string layout = shards > 0 && stages > 1 ? "--logical-shards and --pipeline-stages allow"
                             : shards > 0             ? "--logical-shards allows"
                                                      : "--pipeline-stages allows";
  if (most == 0)
    throw dp::Error(dp::ErrorCode::device,
                    std::to_string(gpus) + (gpus == 1 ? " GPU works" : " GPUs work") + ", fewer than " + layout);
  if (most < gpus)
    devices.notice =
        std::to_string(most) + " of " + std::to_string(gpus) + " working GPUs are used: " + layout + " no more of them";
  devices.list.resize(static_cast<std::size_t>(most * each));
}

void check_processes(const Command& command) {
  const bool several = command.nnodes > 1 || command.node_rank > 0 || command.master_addr || command.master_port != 0;
  if (command.engine == "dp" && several)
    usage("--nnodes, --node-rank, --master-addr and --master-port require --engine ddp");
  if (command.engine == "dp") return;
  if (command.replicas_per_device > 1) usage("--engine ddp runs one process per device; remove --replicas-per-device");
  if (command.selftest) usage("selftest supports only --engine dp");
  if (command.estimate_memory)
    usage(
        "estimate-memory supports only --engine dp; a rank is a process with one replica, so ask for --cpu 1 (or one "
        "GPU) and a rank's share of the batch");
  if (command.node_rank >= command.nnodes)
    usage("--node-rank " + std::to_string(command.node_rank) + " must be less than --nnodes " +
          std::to_string(command.nnodes));
  if (command.nnodes > 1 && !command.master_addr) usage("--nnodes requires --master-addr, the address of host 0");
}

namespace {

struct Launcher {
  const char *size, *rank, *name;
};
// srun sets SLURM_STEP_NUM_TASKS. A batch script has SLURM_NTASKS, but runs only once.
constexpr Launcher kLaunchers[] = {{"WORLD_SIZE", "RANK", "torchrun"},
                                   {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
                                   {"PMI_SIZE", "PMI_RANK", "mpirun"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"}};

int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  int value = 0;
  if (text == nullptr || std::from_chars(text, text + std::strlen(text), value).ec != std::errc{}) value = 0;
  return value;
}

}  // namespace

std::string launcher_here() {
  for (const Launcher& launcher : kLaunchers)
    if (number_in(launcher.size) > 1) return launcher.name;
  return "";
}

int rank_here() {
  for (const Launcher& launcher : kLaunchers)
    if (number_in(launcher.size) > 1) return number_in(launcher.rank);
  return 0;
}

std::string ignored_launcher(const Command& command, bool is_rank) {
  if (is_rank) return "";
  const bool one = command.engine == "dp";
  for (const auto& [size, rank, name] : kLaunchers)
    if (number_in(size) > 1 && number_in(rank) == 0)
      return std::string(size) + " is " + std::to_string(number_in(size)) + ", but " +
             (one ? "--engine dp runs one process" : "this process starts ranks of its own") + ": each copy that " +
             name + " starts trains the whole network by itself; to train one network together, " +
             (one ? "use --engine ddp" : "start them with mpirun, or set RANK and WORLD_SIZE as torchrun does");
  return "";
}

std::optional<dp::ProcessGroupOptions> rank_of_this_process(const Command& command, const std::atomic<int>& stop) {
  std::optional<dp::ProcessGroupOptions> options = dp::process_group_from_environment();
  if (!options) options = dp::process_group_from_mpi();
  if (!options) return options;
  if (command.trainer.parallel.timeout_seconds.value_or(0) > 0)
    options->timeout_seconds = *command.trainer.parallel.timeout_seconds;
  options->stop = &stop;
  return options;
}

int start_ranks(const Command& command, char* const* argv, Signals& signals) {
  const int here = static_cast<int>(choose_devices(command).list.size());
  dp::LaunchOptions options;
  options.ranks = here;
  options.first_rank = command.node_rank * here;
  options.world_size = command.nnodes * here;
  options.address = command.master_addr.value_or("127.0.0.1");
  options.port = command.master_port != 0 ? command.master_port : command.nnodes > 1 ? kDefaultPort : 0;
  options.stop = &signals.received;
  options.unsaved = &signals.unsaved;  // set while ranks run; the ranks decide when to stop
  if (const char* const token = std::getenv("DP_TOKEN")) options.token = token;
  if (command.nnodes > 1 && options.token.empty())
    usage("--nnodes requires a shared secret; set DP_TOKEN to the same text on every host");
  signals.announces = command.node_rank != 0;  // on node 0, rank 0 announces the signal
  return dp::launch_ranks(options, argv);
}

Devices device_of_rank(const Command& command, const dp::ProcessGroup& group) {
  if (command.cpu) return {dp::cpus(1), ""};
  Devices devices = choose_devices(command);
  if (devices.list.front().kind == dp::DeviceKind::cpu) return {dp::cpus(1), devices.notice, devices.warning};
  // A single visible device was assigned by the launcher of the rank (CUDA_VISIBLE_DEVICES).
  const auto at = devices.list.size() == 1 ? std::size_t{0} : static_cast<std::size_t>(group.local_rank());
  if (at >= devices.list.size())
    usage(std::to_string(group.local_size()) + " ranks share this host, but only " +
          std::to_string(devices.list.size()) + " GPUs are selected; start one rank per GPU");
  return {{devices.list[at]}, devices.notice, devices.warning};
}

}  // namespace dp_train
