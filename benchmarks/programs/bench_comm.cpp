// Measures the collectives of a communicator between threads or processes, by nccl-tests' rules: in place, times
// averaged over the ranks, results checked. Prints a `row` line for each collective and size.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <barrier>
#include <numeric>
#include <thread>

#include "benchmarks/programs/collectives.h"
#include "benchmarks/programs/protocol.h"
#include "benchmarks/programs/ranks.h"
#include "dp/device.h"
#include "dp/error.h"
#include "dp/standard_descriptors.h"
#include "engine/process_group/process_group_state.h"
#include "kernels/device/backend.h"
#include "kernels/device/host/cores.h"

namespace {

using namespace dp::benchmarks;
using namespace dp::kernels;

struct Options {
  std::int64_t begin = 8, end = 128 << 20;
  double factor = 2, seconds = 0.02;
  int cpu = 2, threads = 1, rounds = 5;
  std::string gpus, comm;
  std::vector<std::string> collectives;
  RankOptions rank;
};

// Exchanges one number per rank. share() blocks until all ranks have called it and returns all values in rank order.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual std::vector<double> share(int rank, double value) = 0;
};

class Threads final : public Peers {
 public:
  explicit Threads(int ranks) : values_(static_cast<std::size_t>(ranks)), barrier_(ranks) {}
  std::vector<double> share(int rank, double value) override {
    values_[static_cast<std::size_t>(rank)] = value;
    barrier_.arrive_and_wait();
    const std::vector<double> all = values_;
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<double> values_;
  std::barrier<> barrier_;
};

class Processes final : public Peers {
 public:
  explicit Processes(dp::ProcessGroup& group) : group_(group) {}
  std::vector<double> share(int, double value) override {
    std::vector<double> all;
    for (const std::string& text : group_.exchange(exact(value))) all.push_back(std::stod(text));
    return all;
  }

 private:
  dp::ProcessGroup& group_;
};

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

ContextOptions context_options(const Options& options, int rank, int ranks) {
  ContextOptions context;
  context.threads = options.threads;
  context.peer_processes = options.rank.ranks > 1;
  const std::vector<int>& cores = usable_cores();
  if (cores.size() >= static_cast<std::size_t>(ranks * options.threads))
    context.cores.assign(cores.begin() + rank * options.threads, cores.begin() + (rank + 1) * options.threads);
  return context;
}

void report(const Options& options, const Communicator& communicator, const TimedCollective& one, std::int64_t count,
            int calls, const std::vector<double>& seconds, double wrong) {
  std::string samples;
  for (const double sample : seconds) samples += (samples.empty() ? "" : " ") + exact(sample);
  say("row", {{"communicator", communicator.name()},
              {"between", options.rank.ranks > 1 ? "processes" : "threads"},
              {"collective", one.name},
              {"ranks", std::to_string(communicator.size())},
              {"count", std::to_string(count)},
              {"type", "float"},
              {"redop", one.sums ? "sum" : "none"},
              {"root", one.rooted ? "0" : "-1"},
              {"calls", std::to_string(calls)},
              {"seconds", samples},
              {"wrong", exact(wrong)}});
}

void work(const Options& options, Context& context, Communicator& communicator, Peers& peers) {
  context.bind_thread();
  const auto stream = context.make_stream();
  Collectives collectives(communicator, context, *stream, options.end);
  const int rank = communicator.rank();
  for (const TimedCollective& one : all_collectives()) {
    if (!options.collectives.empty() &&
        std::find(options.collectives.begin(), options.collectives.end(), one.name) == options.collectives.end())
      continue;
    for (double size = static_cast<double>(options.begin); size <= static_cast<double>(options.end);
         size *= options.factor) {
      const std::int64_t count = std::max<std::int64_t>(1, static_cast<std::int64_t>(size) / 4);
      const double wrong = sum_of(peers.share(rank, static_cast<double>(collectives.check(one, count))));
      std::vector<double> seconds;
      int calls = 1;
      for (int round = -1; round < options.rounds; ++round) {
        const double each = collectives.time(one, count, calls) / calls;
        const double mean = sum_of(peers.share(rank, each)) / communicator.size();
        if (round < 0)  // warm-up; `calls` is equal on all ranks
          calls = std::clamp(static_cast<int>(options.seconds / mean), 1, 100000);
        else
          seconds.push_back(mean);
      }
      if (rank == 0) report(options, communicator, one, count, calls, seconds, wrong);
    }
  }
}

void run_threads(const Options& options, const std::vector<dp::Device>& devices) {
  Backend& backend = dp::kernels::backend(devices.front().kind);
  const int ranks = static_cast<int>(devices.size());
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<Context*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    contexts.push_back(backend.open(devices[static_cast<std::size_t>(rank)], context_options(options, rank, ranks)));
    pointers.push_back(contexts.back().get());
  }
  const std::string name = options.comm.empty() ? backend.default_communicator(devices, true).name : options.comm;
  const auto handles = backend.make_communicators(name, pointers);
  Threads peers(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        work(options, *contexts[rank], *handles[rank], peers);
      } catch (const std::exception& error) {
        say("error", {{"message", error.what()}});
        std::_Exit(1);  // the other ranks block on this one
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void run_rank(const Options& options, const std::vector<dp::Device>& devices) {
  const std::shared_ptr<dp::ProcessGroup> group = join_process_group(options.rank);
  const auto at = static_cast<std::size_t>(group->rank()) % devices.size();
  Backend& backend = dp::kernels::backend(devices[at].kind);
  const auto context = backend.open(devices[at], context_options(options, group->local_rank(), group->local_size()));
  Rendezvous& rendezvous = group->state();
  const std::string name = options.comm.empty() ? backend.default_communicator(rendezvous).name : options.comm;
  const auto handle = backend.join(name, *context, rendezvous);
  Processes peers(*group);
  work(options, *context, *handle, peers);
}

}  // namespace

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
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
  add_rank_options(app, options.rank);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto count = [] { return dp::probe_devices(dp::DeviceKind::cuda).count; };
    const std::vector<dp::Device> devices = options.gpus.empty() ? dp::cpus(options.rank.ranks > 1 ? 1 : options.cpu)
                                                                 : dp::gpus(dp::parse_gpu_list(options.gpus, count()));
    options.rank.ranks > 1 ? run_rank(options, devices) : run_threads(options, devices);
  } catch (const std::exception& error) {
    say("error", {{"message", error.what()}});
    return 1;
  }
}
