#include "devices.h"

#include <dp/default_devices.h>
#include <dp/error.h>
#include <dp/shell.h>
#include <utility>

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

}  // namespace dp_train
