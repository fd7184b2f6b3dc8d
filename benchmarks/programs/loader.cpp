// Measures the loader without training: images per second and thread, from files to normalised float32 batches.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "dp/dp.h"

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
  std::string dataset = "cifar10", path = ".", part = "train";
  dp::LoaderOptions options{.augment = true};
  double seconds = 3;
  int rounds = 5;
  bool plain = false;
  CLI::App app("Measures the loader. The first batches, which fill the ring and warm the file cache, do not count.");
  app.add_option("--dataset", dataset, "by its name on dp_train's command line")->capture_default_str();
  app.add_option("--data-path", path, "where its files are")->capture_default_str();
  app.add_option("--part", part)->check(CLI::IsMember({"train", "test"}))->capture_default_str();
  app.add_option("-b,--batch-size", options.batch_size)->capture_default_str();
  app.add_option("-j,--workers", options.workers)->capture_default_str();
  app.add_option("--seconds", seconds, "of each round")->capture_default_str();
  app.add_option("--rounds", rounds)->capture_default_str();
  app.add_flag("--no-augment", plain);
  CLI11_PARSE(app, argc, argv);
  options.augment = !plain;
  try {
    const dp::DatasetPair pair = dp::datasets::find(dataset).open(path, 42);
    dp::Loader loader(part == "train" ? pair.train : pair.test, options);
    std::int64_t epoch = 0;
    loader.start(epoch);
    const auto take = [&] {
      const dp::Batch* batch = loader.next();
      while (!batch) {
        loader.start(++epoch);
        batch = loader.next();
      }
      return batch->size();
    };
    for (int i = 0; i < options.slots + 1; ++i) take();
    std::printf("%s %s, batches of %lld, %d threads, %s\n", dataset.c_str(), part.c_str(),
                static_cast<long long>(options.batch_size), options.workers, plain ? "plain" : "augmented");
    for (int round = 0; round < rounds; ++round) {
      std::int64_t images = 0;
      const auto begin = std::chrono::steady_clock::now();
      std::chrono::duration<double> passed{};
      while (passed.count() < seconds) {
        images += take();
        passed = std::chrono::steady_clock::now() - begin;
      }
      const double rate = static_cast<double>(images) / passed.count();
      std::printf("round %d: %.0f images/s, %.0f for each thread\n", round + 1, rate, rate / options.workers);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
