// Collectives of a communicator between replicas of this process, by nccl-tests' rules: in place, average over the ranks, data
// checked. Prints a `row` line for each collective and size.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "benchmarks/collectives.h"
#include "benchmarks/protocol.h"
#include "dp/device.h"
#include "dp/error.h"
#include "kernels/backend.h"
#include "kernels/host/cores.h"

namespace {

using namespace dp::benchmarks;
using namespace dp::kernels;
using Clock = std::chrono::steady_clock;

struct Options {
  std::int64_t begin = 8, end = 128 << 20;
  double factor = 2, seconds = 0.02;
  int cpu = 2, threads = 1, rounds = 5;
  std::string gpus, comm;
  std::vector<std::string> collectives;
};

// One thread for each rank, all at the same call.
class World {
 public:
  World(const Options& options, const std::vector<dp::Device>& devices)
      : options_(options), devices_(devices), meeting_(static_cast<std::ptrdiff_t>(devices.size())) {
    Backend& backend = dp::kernels::backend(devices.front().kind);
    for (std::size_t rank = 0; rank < devices.size(); ++rank)
      contexts_.push_back(backend.open(devices[rank], context_options(static_cast<int>(rank))));
    std::vector<Context*> pointers;
    for (const auto& context : contexts_) pointers.push_back(context.get());
    const std::string name = options.comm.empty() ? std::string(backend.default_communicator()) : options.comm;
    handles_ = backend.make_communicators(name, pointers);
  }

  void run() {
    std::vector<std::thread> threads;
    std::vector<std::string> failures(devices_.size());
    for (std::size_t rank = 0; rank < devices_.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          work(static_cast<int>(rank));
        } catch (const std::exception& error) {
          // The others wait for this rank: there is no going on.
          say("error", {{"message", error.what()}});
          std::_Exit(1);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  ContextOptions context_options(int rank) const {
    ContextOptions options;
    options.threads = options_.threads;
    const std::vector<int>& cores = usable_cores();
    const auto first = static_cast<std::size_t>(rank * options_.threads);
    if (cores.size() >= devices_.size() * static_cast<std::size_t>(options_.threads))
      options.cores.assign(cores.begin() + static_cast<std::ptrdiff_t>(first),
                           cores.begin() + static_cast<std::ptrdiff_t>(first) + options_.threads);
    return options;
  }

  void work(int rank) {
    Context& context = *contexts_[static_cast<std::size_t>(rank)];
    context.bind_thread();
    const auto stream = context.make_stream();
    Collectives collectives(*handles_[static_cast<std::size_t>(rank)], context, *stream, options_.end);
    const int ranks = static_cast<int>(devices_.size());
    for (const Collective& one : all_collectives()) {
      if (!options_.collectives.empty() &&
          std::find(options_.collectives.begin(), options_.collectives.end(), one.name) == options_.collectives.end())
        continue;
      for (double size = static_cast<double>(options_.begin); size <= static_cast<double>(options_.end);
           size *= options_.factor) {
        const std::int64_t count = std::max<std::int64_t>(1, static_cast<std::int64_t>(size) / 4);
        meeting_.arrive_and_wait();
        const std::int64_t wrong = collectives.check(one, count);
        std::vector<double> seconds;
        int calls = 1;
        for (int round = -1; round < options_.rounds; ++round) {
          meeting_.arrive_and_wait();
          const double each = collectives.time(one, count, calls) / calls;
          times_[static_cast<std::size_t>(rank)] = each;
          wrong_[static_cast<std::size_t>(rank)] = wrong;
          meeting_.arrive_and_wait();
          const double mean = std::accumulate(times_.begin(), times_.end(), 0.0) / ranks;
          if (round < 0)  // it warmed up; the same for every rank
            calls = std::clamp(static_cast<int>(options_.seconds / mean), 1, 100000);
          else
            seconds.push_back(mean);
        }
        if (rank == 0) report(one, count, calls, seconds);
      }
    }
  }

  void report(const Collective& one, std::int64_t count, int calls, std::vector<double> seconds) const {
    std::sort(seconds.begin(), seconds.end());
    std::string samples;
    for (const double sample : seconds) samples += (samples.empty() ? "" : " ") + exact(sample);
    say("row", {{"communicator", handles_.front()->name()},
                {"collective", one.name},
                {"ranks", std::to_string(devices_.size())},
                {"count", std::to_string(count)},
                {"type", "float"},
                {"redop", one.sums ? "sum" : "none"},
                {"root", one.rooted ? "0" : "-1"},
                {"calls", std::to_string(calls)},
                {"seconds", samples},
                {"wrong", std::to_string(std::accumulate(wrong_.begin(), wrong_.end(), std::int64_t{0}))}});
  }

  const Options& options_;
  const std::vector<dp::Device> devices_;
  std::barrier<> meeting_;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::vector<std::unique_ptr<Communicator>> handles_;
  std::vector<double> times_ = std::vector<double>(devices_.size());
  std::vector<std::int64_t> wrong_ = std::vector<std::int64_t>(devices_.size());
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Seconds of collectives, a line for each size");
  app.add_option("--begin", options.begin, "bytes")->check(CLI::PositiveNumber);
  app.add_option("--end", options.end, "bytes")->check(CLI::PositiveNumber);
  app.add_option("--factor", options.factor)->check(CLI::Range(1.1, 1e6));
  app.add_option("--seconds", options.seconds, "of a round, about")->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--cpu", options.cpu, "ranks")->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "of each rank")->check(CLI::PositiveNumber);
  app.add_option("--gpus", options.gpus, "ids of GPUs instead");
  app.add_option("--comm", options.comm, "the communicator; else the backend's own");
  app.add_option("--collectives", options.collectives)->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    const auto count = [] { return dp::probe_devices(dp::DeviceKind::cuda).count; };
    World(options, options.gpus.empty() ? dp::cpus(options.cpu) : dp::gpus(dp::parse_gpu_list(options.gpus, count())))
        .run();
  } catch (const std::exception& error) {
    say("error", {{"message", error.what()}});
    return 1;
  }
}
