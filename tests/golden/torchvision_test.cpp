// Exchanges the state dicts of the networks DP_EXCHANGED with torchvision in both directions. Skipped if Python has no
// torchvision.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "dp/checkpoint.h"
#include "dp/data_parallel.h"
#include "dp/models.h"
#include "golden/golden_file.h"
#include "golden/resnet_golden.h"
#include "support/catch.h"
#include "support/temporary_folder.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;

constexpr int kNoTorchvision = 4;

// Runs exchange_torchvision.py; returns its exit status. The host may lack this Python if
// the program was built elsewhere.
int exchange(const std::string& what, const TemporaryFolder& folder, const std::string& network) {
  const std::string python = DP_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) return kNoTorchvision;
  const std::string command = "'" + python + "' -B '" + golden_folder() + "/exchange_torchvision.py' " + what + " '" +
                              folder.path() + "' " + network;
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Model imagenet_model(const std::string& network) { return models::find(network).make({3, 64, 64}, 30); }

const Tensor& find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

}  // namespace

TEST_CASE("torchvision's state dict is loaded and gives torchvision's predictions") {
  const std::string network = GENERATE(DP_EXCHANGED);
  const TemporaryFolder folder;
  if (exchange("ask", folder, network) == kNoTorchvision) DP_SKIP("no Python with torchvision");
  INFO(network);
  REQUIRE(exchange("write", folder, network) == 0);
  const auto expected = read_safetensors(folder.path() + "/expected.safetensors");
  const auto state = read_safetensors(folder.path() + "/state.safetensors");
  DataParallel net(imagenet_model(network), on_cpus(1));
  const auto own = net.weights();
  REQUIRE(state.size() == own.size());
  net.set_weights(state);
  const Tensor& predictions = net.predict(find(expected, "images"));
  CHECK(relative_error(predictions, find(expected, "predictions")) <= 1e-4);
  for (const auto& [name, tensor] : net.weights()) {
    INFO(name);
    CHECK(tensor.dtype() == find(state, name).dtype());
    CHECK(tensor.shape() == find(state, name).shape());
    CHECK(relative_error(tensor, find(state, name)) == 0);
  }
}

TEST_CASE("torchvision's .pth files become safetensors files that torchvision loads strictly") {
  const std::string network = GENERATE(DP_EXCHANGED);
  const TemporaryFolder folder;
  if (exchange("ask", folder, network) == kNoTorchvision) DP_SKIP("no Python with torchvision");
  INFO(network);
  REQUIRE(exchange("write-pth", folder, network) == 0);
  for (const std::string file : {"zip", "legacy", "half"})
    write_safetensors(folder / (file + ".safetensors"), read_stored_weights(folder / (file + ".pth")).tensors);
  CHECK(exchange("check-pth", folder, network) == 0);
  DataParallel net(imagenet_model(network), on_cpus(1));
  const FittedWeights fitted = read_weights(folder / "zip.pth", net.weights());
  CHECK(fitted.faults.empty());
  net.set_weights(fitted.tensors);
}

TEST_CASE("torchvision's network loads a trained state dict strictly and gives the engine's predictions") {
  const std::string network = GENERATE(DP_EXCHANGED);
  const TemporaryFolder folder;
  if (exchange("ask", folder, network) == kNoTorchvision) DP_SKIP("no Python with torchvision");
  INFO(network);
  DataParallel net(imagenet_model(network), on_cpus(1));
  for (std::uint64_t step = 0; step < 2; ++step)
    net.train_step(resnet_batch(net.model(), 4, step), Sgd{.lr = 0.01f, .momentum = 0.9f});
  const Batch batch = resnet_batch(net.model(), 3, 2);
  write_safetensors(folder.path() + "/state.safetensors", net.weights());
  write_safetensors(folder.path() + "/expected.safetensors",
                    {{"images", batch.images}, {"predictions", net.predict(batch.images).clone()}});
  CHECK(exchange("check", folder, network) == 0);
}
