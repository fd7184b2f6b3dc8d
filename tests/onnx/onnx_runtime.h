// Networks for the tests of ONNX files, and their outputs by onnxruntime.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "dp/dp.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace dp::test {

inline constexpr int kNoOnnxruntime = 4;

// run_onnx.py on the files of a folder; its exit status. The host may lack this Python.
inline int run_onnx(const TemporaryFolder& folder) {
  const std::string python = DP_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) return kNoOnnxruntime;
  const std::string command = "'" + python + "' -B '" DP_ONNX_TESTS "/run_onnx.py' '" + folder.path() + "'";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline bool has_onnxruntime() {
  static const bool has = run_onnx(TemporaryFolder()) != kNoOnnxruntime;
  return has;
}

// The largest difference, relative to the largest output.
inline double output_error(const Tensor& got, const Tensor& expected) {
  if (got.shape() != expected.shape()) return kInfinitelyFar;
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    difference = larger_error(difference, std::abs(value_at(got, i) - value_at(expected, i)));
    largest = larger_error(largest, std::abs(value_at(expected, i)));
  }
  return largest == 0 ? difference : difference / largest;
}

// The weights of `net`, with other running statistics and factors of normalisations than the initial ones.
inline NamedTensors varied_weights(const DataParallel& net, std::uint64_t seed) {
  NamedTensors weights = net.weights();
  Random random(seed, RandomUse::synthetic);
  const auto vary = [&](Tensor& tensor, float low, float high) {
    for (float& value : tensor.span<float>()) value = low + (high - low) * random.uniform();
  };
  std::map<std::string, Tensor*> by_name;
  for (auto& [name, tensor] : weights) by_name[name] = &tensor;
  for (auto& [name, tensor] : weights) {
    if (name.ends_with(".running_mean")) vary(tensor, -0.5f, 0.5f);
    if (name.ends_with(".running_var")) vary(tensor, 0.5f, 2);
    if (!name.ends_with(".weight") || tensor.shape().rank() != 1 || tensor.numel() < 2) continue;
    vary(tensor, 0.5f, 1.5f);
    if (const auto bias = by_name.find(name.substr(0, name.size() - 6) + "bias"); bias != by_name.end())
      vary(*bias->second, -0.5f, 0.5f);
  }
  return weights;
}

}  // namespace dp::test
