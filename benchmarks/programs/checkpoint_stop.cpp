// How long a checkpoint stops the training loop (docs/decisions/0078), beside a save for which it waits. Medians. One
// round is: a step alone, a snapshot and a step while a thread copies, a save for which training waits, and steps while
// a thread copies and writes.
// call    snapshot() itself
// stop    the call, and by how much the step after it computes nothing for longer than a step alone
// longer  the call, and by how much the step after it takes longer: it shares cores and memory with the thread
// slowed  by how much all steps during a copy and a write take longer
// copy    a snapshot and its copy, if no step runs
#include <dp/dp.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const std::string& name, const std::string& folder, int threads, std::int64_t batch, int saves) {
  const dp::models::Entry& entry = dp::models::find(name);
  const dp::Shape input = dp::datasets::find(entry.recipe.dataset).image;
  dp::DataParallel net(entry.make(input, 10), {.devices = {dp::Device{}}, .threads_per_replica = threads});
  const dp::DatasetPair data = dp::datasets::synthetic(input, 10, batch, batch);
  dp::Loader loader(data.train, {.batch_size = batch});
  loader.start(0);
  const dp::Batch& images = *loader.next();
  const auto step = [&] {
    const auto begin = std::chrono::steady_clock::now();
    net.take_phase_times();
    net.train_step(images, dp::Sgd{.lr = 1e-4f, .momentum = 0.9f});
    return seconds_since(begin);
  };
  const auto idle = [&] { return net.take_phase_times().front().waiting; };  // in the last step
  step();
  dp::Checkpoint checkpoint;
  checkpoint.state.model = name, checkpoint.state.dataset = "synthetic", checkpoint.model = net.model();
  const auto save = [&] { dp::save_checkpoint(folder + "/checkpoint", checkpoint); };
  std::vector<double> alone, call, stop, longer, copies, whole, slowed;
  for (int i = 0; i <= saves; ++i) {
    const double usual = step(), idle_alone = idle();
    auto begin = std::chrono::steady_clock::now();
    std::function<void()> copy = net.snapshot(checkpoint);
    const double called = seconds_since(begin);
    std::thread copying(copy);
    const double took_longer = called + step() - usual, stopped = called + idle() - idle_alone;
    copying.join();
    begin = std::chrono::steady_clock::now();
    net.snapshot(checkpoint)();
    const double copied = seconds_since(begin);
    save();
    const double saved = seconds_since(begin);
    begin = std::chrono::steady_clock::now();
    std::atomic<bool> written{false};
    std::thread writing([&, fill = net.snapshot(checkpoint)] { fill(), save(), written = true; });
    int steps = 0;
    for (; !written; ++steps) step();
    const double during = seconds_since(begin);
    writing.join();
    if (i == 0) continue;  // the first one allocates
    alone.push_back(usual), call.push_back(called), stop.push_back(stopped), whole.push_back(saved);
    longer.push_back(took_longer), copies.push_back(copied), slowed.push_back(during - steps * usual);
  }
  std::printf("%-14s %7d %5lld %9.1f %8.2f %8.2f %8.1f %8.1f %8.1f %8.1f %7.1f %%\n", name.c_str(), threads,
              static_cast<long long>(batch), 1e3 * median(alone), 1e3 * median(call), 1e3 * median(stop),
              1e3 * median(longer), 1e3 * median(slowed), 1e3 * median(copies), 1e3 * median(whole),
              100 * median(stop) / median(whole));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Time for which a checkpoint stops training"};
  std::string folder = std::filesystem::temp_directory_path();
  int saves = 9, threads = 0;
  std::vector<std::string> models{"mnist_convnet", "resnet18", "resnet50"};
  std::int64_t batch = 0;
  app.add_option("--folder", folder, "where the checkpoints are written")->capture_default_str();
  app.add_option("--saves", saves, "measured saves of each network")->capture_default_str();
  app.add_option("--models", models, "networks");
  app.add_option("--threads", threads, "of training [one, and all cores]");
  app.add_option("--batch", batch, "images of a step [64; resnet50: 4]");
  CLI11_PARSE(app, argc, argv);
  std::printf(
      "network        threads batch  step, ms call, ms stop, ms longer, ms slowed, ms copy, ms save, ms stop/save\n");
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const std::string& model : models)
    for (const int of_step : threads > 0 ? std::vector{threads} : std::vector{1, cores})
      measure(model, folder, of_step, batch > 0 ? batch : model == "resnet50" ? 4 : 64, saves);
  std::filesystem::remove_all(folder + "/checkpoint");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "checkpoint_stop: %s\n", error.what());
  return 1;
}
