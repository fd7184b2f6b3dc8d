// The number of kernels that a training step enqueues, as counted by --print-plan, on a simulated GPU. No kernel runs.
#include <set>
#include <sstream>

#include "cuda/simulated_gpus.h"
#include "engine/base/test_modes.h"
#include "support/training.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

namespace {

// Kernels of a training step by name, without inputs and the update: the first table of describe_plan().
std::map<std::string, int> kernels_of_step(const Model& model, NormFusion fusion, std::int64_t batch, Amp amp,
                                           std::string* header = nullptr) {
  engine::test_modes().norm_fusion = fusion;
  const DataParallel net(model, {.devices = gpus({0}), .autotune = false, .amp = amp});
  const std::string plan = net.describe_plan(batch);
  engine::test_modes().norm_fusion = NormFusion::measured;
  if (header != nullptr) *header = plan.substr(0, plan.find(" kernels\n")), header->erase(0, header->rfind('\n') + 1);
  std::map<std::string, int> kernels;
  std::istringstream lines(plan.substr(plan.find(" kernels\n") + std::string(" kernels\n").size()));
  for (std::string line; std::getline(lines, line) && line.starts_with("    ");) {
    std::istringstream words(line);
    int count = 0;
    std::string name;
    words >> count >> name;
    kernels[name] = count;
  }
  return kernels;
}

// Counts all kernels except convolutions, matrix products and passes over a whole activation.
int small_ones(const std::map<std::string, int>& kernels) {
  const std::set<std::string> passes{"avg_pool_backward",    "batch_norm_backward", "batch_norm_backward_sums",
                                     "batch_norm_forward",   "batch_norm_moments",  "global_avg_pool",
                                     "reorder_few_channels", "add_forward"};
  int count = 0;
  for (const auto& [name, times] : kernels)
    if (name.find("conv") == std::string::npos && !name.starts_with("linear_") && !passes.contains(name))
      count += times;
  return count;
}

}  // namespace

TEST_CASE("simulated GPUs: a step of ResNet18 has at most 40 small kernels") {
  SimulatedGpus machine(1);
  simt::simulation().protect_memory = false;  // faster
  const Model model = models::resnet18({.classes = 10, .input = {3, 32, 32}});
  for (const NormFusion fusion : {NormFusion::never, NormFusion::always}) {
    std::string header;
    const std::map<std::string, int> kernels = kernels_of_step(model, fusion, 64, Amp::bfloat16, &header);
    std::string text = header + " kernels, of these small " + std::to_string(small_ones(kernels)) + "\n";
    for (const auto& [name, count] : kernels) text += std::to_string(count) + " " + name + "\n";
    INFO((fusion == NormFusion::always ? "fused" : "unfused") << "\n" << text);
    CHECK(small_ones(kernels) <= 40);
    CHECK(kernels.contains("batch_norm_forward"));
    CHECK(kernels.contains("batch_norm_track"));
    CHECK(kernels.contains("conv_mma_norm_data") == (fusion == NormFusion::always));
    int convolutions = 0;
    for (const auto& [name, count] : kernels)
      if (name.starts_with("norm_conv") || (name.starts_with("conv") && name.ends_with("forward")))
        convolutions += count;
    CHECK(convolutions == 20);  // one launch each
    CHECK(kernels.at("loss") == 1);
    CHECK(kernels.at("batch_norm_track") == 1);
    CHECK_FALSE(kernels.contains("batch_norm_merge"));
  }
}

TEST_CASE("simulated GPUs: a step of mnist_convnet has ten kernels besides those of batch and update") {
  SimulatedGpus machine(1);
  simt::simulation().protect_memory = false;  // faster
  const Model model = models::mnist_convnet();
  const auto count = [&](NormFusion fusion) {
    int sum = 0;
    std::string text;
    for (const auto& [name, times] : kernels_of_step(model, fusion, 64, Amp::off)) {
      text += std::to_string(times) + " " + name + "\n";
      sum += times;
    }
    UNSCOPED_INFO(text);
    return sum;
  };
  CHECK(count(NormFusion::measured) <= 10);
  CHECK(count(NormFusion::never) > 10);
}
