// How long a checkpoint stops the training loop: the copy of the state, beside the copy and the write to the disk, for
// which --sync-checkpoints waits (docs/decisions/0078). Medians of several saves.
#include <dp/dp.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const std::string& name, const std::string& folder, int saves) {
  const dp::models::Entry& entry = dp::models::find(name);
  const dp::Shape input = dp::datasets::find(entry.recipe.dataset).image;
  dp::DataParallel net(entry.make(input, 10), {.devices = {dp::Device{}}});
  const dp::DatasetPair data = dp::datasets::synthetic(input, 10, 8, 8);
  dp::Loader loader(data.train, {.batch_size = 4});
  for (const dp::Batch& batch : loader.epoch(0)) net.train_step(batch, dp::Sgd{.lr = 1e-4f, .momentum = 0.9f});
  std::vector<double> copy, whole;
  for (int i = 0; i <= saves; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    dp::Checkpoint checkpoint;
    checkpoint.state.model = name, checkpoint.state.dataset = "synthetic";
    checkpoint.weights = net.weights(), checkpoint.optimizer = net.optimizer_state(), checkpoint.model = net.model();
    const double copied = seconds_since(begin);
    dp::save_checkpoint(folder + "/checkpoint", checkpoint);
    if (i == 0) continue;  // the first one warms up
    copy.push_back(copied), whole.push_back(seconds_since(begin));
  }
  std::printf("%-14s %10.1f %10.1f %9.1f %%\n", name.c_str(), 1e3 * median(copy), 1e3 * median(whole),
              100 * median(copy) / median(whole));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Time for which a checkpoint stops training"};
  std::string folder = std::filesystem::temp_directory_path();
  int saves = 9;
  std::vector<std::string> models{"mnist_convnet", "resnet18", "resnet50"};
  app.add_option("--folder", folder, "where the checkpoints are written")->capture_default_str();
  app.add_option("--saves", saves, "measured saves of each network")->capture_default_str();
  app.add_option("--models", models, "networks");
  CLI11_PARSE(app, argc, argv);
  std::printf("network          copy, ms  whole, ms  copy/whole\n");
  for (const std::string& model : models) measure(model, folder, saves);
  std::filesystem::remove_all(folder + "/checkpoint");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "checkpoint_stop: %s\n", error.what());
  return 1;
}
