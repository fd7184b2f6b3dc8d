#include "checkpoint/files_support.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace dp::test {
namespace {

Tensor filled(const Shape& shape, double value) {
  Tensor tensor(shape);
  for (float& x : tensor.span<float>()) x = static_cast<float>(value);
  return tensor;
}

bool all_are(const Tensor& tensor, double value) {
  for (const float x : tensor.span<float>())
    if (x != static_cast<float>(value)) return false;
  return true;
}

}  // namespace

ScratchFolder::ScratchFolder()
    : TemporaryFolder(!::getenv("TMPDIR") && ::access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                                             : std::filesystem::temp_directory_path()) {
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string safetensors_bytes(const std::string& json, const std::string& data) {
  const std::uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + data;
}

Outcome outcome_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {};
}

Checkpoint checkpoint_at(std::int64_t step) {
  const auto value = static_cast<double>(step);
  Checkpoint checkpoint;
  checkpoint.state = {.model = "mlp",
                      .dataset = "digits",
                      .step = step,
                      .epoch = step / 10,
                      .batch_in_epoch = step % 10,
                      .seed = ~std::uint64_t{0},
                      .global_batch = 64,
                      .best_top1 = value / 3,
                      .config = "{\"lr\": 0.1}",
                      .since_best = step % 7};
  checkpoint.weights = {{"fc1.weight", filled({16, 9}, value)}, {"fc1.bias", filled({16}, value + 0.5)}};
  checkpoint.optimizer = {"sgd",
                          step,
                          {{"momentum_buffer.fc1.weight", filled({16, 9}, -value)},
                           {"momentum_buffer.fc1.bias", filled({16}, -value - 0.5)}}};
  return checkpoint;
}

bool is_checkpoint_at(const Checkpoint& c, std::int64_t step) {
  const auto value = static_cast<double>(step);
  const auto tensors_are = [&](const NamedTensors& tensors, const std::string& prefix, double weight, double bias) {
    return tensors.size() == 2 && tensors[0].first == prefix + "fc1.bias" && all_are(tensors[0].second, bias) &&
           tensors[1].first == prefix + "fc1.weight" && tensors[1].second.shape() == Shape{16, 9} &&
           all_are(tensors[1].second, weight);
  };
  return c.state.model == "mlp" && c.state.dataset == "digits" && c.state.step == step && c.state.epoch == step / 10 &&
         c.state.batch_in_epoch == step % 10 && c.state.seed == ~std::uint64_t{0} && c.state.global_batch == 64 &&
         c.state.best_top1 == value / 3 && c.state.since_best == step % 7 && c.state.config == "{\"lr\": 0.1}" &&
         tensors_are(c.weights, "", value, value + 0.5) && c.optimizer.optimizer == "sgd" &&
         c.optimizer.updates == step && tensors_are(c.optimizer.tensors, "momentum_buffer.", -value, -value - 0.5);
}

int count_hidden(const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    count += entry.path().filename().string().front() == '.';
  return count;
}

}  // namespace dp::test
