#include "dp/device.h"

#include <algorithm>
#include <charconv>

#include "dp/error.h"

namespace dp {
namespace {

// -1 if the text is not an id.
int parse_id(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda:" + std::to_string(device.index);
    case DeviceKind::reference: return "reference";
  }
  return "unknown";
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return {DeviceKind::cpu, 0};
  if (text == "reference") return {DeviceKind::reference, 0};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  if (text.starts_with("cuda:"))
    if (const int id = parse_id(text.substr(5)); id >= 0) return {DeviceKind::cuda, id};
  throw Error(ErrorCode::usage, "'" + std::string(text) + "' is not a device; use cpu or cuda:<id>");
}

std::vector<Device> cpus(int replicas) {
  if (replicas < 1) throw Error(ErrorCode::usage, "at least one CPU replica is needed");
  return std::vector<Device>(static_cast<std::size_t>(replicas), Device{DeviceKind::cpu, 0});
}

std::vector<Device> gpus(const std::vector<int>& indices) {
  std::vector<Device> devices;
  for (const int index : indices) {
    if (index < 0) throw Error(ErrorCode::usage, "GPU id " + std::to_string(index) + " is negative");
    devices.push_back({DeviceKind::cuda, index});
  }
  return devices;
}

std::vector<int> parse_gpu_list(std::string_view text, int count) {
  const std::string valid = count == 0
                                ? "no GPU is visible"
                                : "valid ids are 0" + (count > 1 ? "-" + std::to_string(count - 1) : std::string());
  const auto refuse = [&](const std::string& why) { throw Error(ErrorCode::usage, "--gpus: " + why + "; " + valid); };
  std::vector<int> ids;
  if (text == "all") {
    for (int i = 0; i < count; ++i) ids.push_back(i);
    return ids;
  }
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t dash = part.find('-');
    const int first = parse_id(part.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : parse_id(part.substr(dash + 1));
    if (first < 0 || last < 0) refuse("'" + std::string(text) + "' is not a list of GPU ids such as 0,2 or 0-3");
    if (last < first) refuse("'" + std::string(part) + "' is a descending range");
    if (last >= count) refuse("GPU id " + std::to_string(last) + " does not exist");
    for (int id = first; id <= last; ++id) {
      if (std::find(ids.begin(), ids.end(), id) != ids.end())
        refuse("GPU id " + std::to_string(id) +
               " is listed twice; use --replicas-per-device for several replicas on one GPU");
      ids.push_back(id);
    }
    begin = end + 1;
  }
  return ids;
}

}  // namespace dp
