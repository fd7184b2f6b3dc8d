// Starts all variants, then measures them one at a time, in rounds. The other variants wait for commands meanwhile.
#include <dp/device.h>
#include <dp/error.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <memory>
#include <set>
#include <thread>

#include "child.h"
#include "step.h"

namespace dp_bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(50);  // worker threads stop spinning within this time
constexpr double kSameLoss = 1e-3;                      // relative; reduction orders differ, after up to three steps
constexpr double kSameLossInLow = 1e-2;                 // the same with mixed precision

// A started variant: one process per rank.
struct Running {
  Measured* result = nullptr;
  std::vector<std::unique_ptr<Child>> ranks{};
  int steps = 1;  // per round
  Reply reply{};  // the last one of the first rank

  explicit Running(Measured* made) : result(made) {}
  Running(Running&&) = default;
  Running& operator=(Running&&) = default;
  ~Running() {  // closes all inputs before the first Child waits: the ranks end together
    for (auto& rank : ranks) rank->end_input();
  }

  double cpu_seconds() const {
    double sum = 0;
    for (const auto& rank : ranks) sum += rank->cpu_seconds();
    return sum;
  }
};

// During measurements: elapsed seconds, and CPU seconds of other processes and of the waiting variants.
struct Load {
  double elapsed = 0, others = 0, idle = 0;
};

class Rounds {
 public:
  Rounds(const StepOptions& options, const std::vector<VariantSpec>& variants, Progress progress)
      : options_(options), progress_(progress) {
    for (const VariantSpec& spec : variants) {
      Measured one;
      one.spec = spec;
      one.note = spec.absent;
      result_.variants.push_back(one);
    }
    result_.options = options_;
  }

  StepResult measure() {
    start_all();
    for (Running& one : running_) attempt(one, [&] { calibrate(one); });
    drop_failed();
    for (int round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < running_.size(); ++i) {
        Running& one = running_[(i + static_cast<std::size_t>(round)) % running_.size()];
        attempt(one, [&] {
          one.result->seconds_per_step.push_back(watch(one));
          one.result->replies.push_back(one.reply);
        });
      }
      drop_failed();
      std::string line = "round " + std::to_string(round + 1) + " of " + std::to_string(options_.rounds) + ", ms/step:";
      for (const Running& one : running_)
        line += " " + one.result->spec.key + " " + shown(Cell(one.result->seconds_per_step.back() * 1e3), 1);
      progress_(line);
    }
    add_facts();
    return std::move(result_);
  }

 private:
  void start_all() {
    for (Measured& variant : result_.variants) {
      if (!variant.note.empty()) continue;
      progress_("starting " + variant.spec.title);
      Running one(&variant);
      try {
        start(one);
        if (variant.note.empty()) running_.push_back(std::move(one));
      } catch (const ChildError& error) {
        variant.note = error.what();
      }
    }
  }

  void start(Running& one) {
    const VariantSpec& spec = one.result->spec;
    const bool pytorch = spec.group == "pytorch";
    std::vector<std::string> words = pytorch
                                         ? std::vector<std::string>{options_.python, find_program("pytorch_step.py")}
                                         : std::vector<std::string>{find_program("bench_step")};
    words.insert(words.end(), spec.arguments.begin(), spec.arguments.end());
    if (pytorch) {
      if (!inputs_ready_)
        throw ChildError("PyTorch variants read their inputs from a dp variant; add one to --variants");
      words.insert(words.end(), {"--inputs", inputs_.path()});
    } else if (!inputs_ready_) {
      words.insert(words.end(), {"--save-inputs", inputs_.path()});
    }
    if (pytorch) {
      const std::string rendezvous_file = rendezvous_files_.emplace_back().path();
      for (int rank = 0; rank < spec.processes; ++rank)
        one.ranks.push_back(std::make_unique<Child>(words, pytorch_variables(spec, rank, rendezvous_file)));
    } else {
      one.ranks = start_ranks(words, spec.processes, options_.timeout);
    }
    Reply first;
    for (auto& rank : one.ranks) {
      const Reply reply = rank->read(options_.timeout);
      if (reply.word == "absent") {
        one.result->note = reply.text("reason");
        return;
      }
      if (rank == one.ranks.front()) first = reply;
    }
    inputs_ready_ = inputs_ready_ || !pytorch;
    check_alike(one, first);
    for (const auto& [key, value] : first.fields)
      if (key.starts_with("version:")) versions_.insert(key.substr(8) + " " + value);
    one.result->reduce = first.text("reduce");
    one.result->ready = first;
    if (!pytorch) parameter_bytes_ = first.number("parameter_bytes");
    one.result->parameter_bytes = parameter_bytes_;
  }

  std::vector<std::string> pytorch_variables(const VariantSpec& spec, int rank,
                                             const std::string& rendezvous_file) const {
    const std::vector<int>& cores = dp::process_cores();
    const int threads = std::max(1, options_.threads / spec.processes);
    std::vector<std::string> variables{
        "OMP_NUM_THREADS=" + std::to_string(threads), "OPENBLAS_NUM_THREADS=" + std::to_string(threads),
        "DP_BENCH_RENDEZVOUS=" + rendezvous_file,     "RANK=" + std::to_string(rank),
        "LOCAL_RANK=" + std::to_string(rank),         "WORLD_SIZE=" + std::to_string(spec.processes)};
    if (options_.gpus.empty() && cores.size() >= static_cast<std::size_t>(options_.threads)) {
      std::string places;
      for (int i = 0; i < threads; ++i)
        places += (i ? ",{" : "{") + std::to_string(cores[static_cast<std::size_t>(rank * threads + i)]) + "}";
      variables.insert(variables.end(), {"OMP_PROC_BIND=true", "OMP_PLACES=" + places});
    }
    return variables;
  }

  // Compared variants must compute the same losses. With batch normalisation the losses of several replicas or
  // micro-batches differ: each normalises by its own images.
  void check_alike(const Running& one, const Reply& first) {
    const VariantSpec& spec = one.result->spec;
    const bool amp = std::find(spec.arguments.begin(), spec.arguments.end(), "--amp") != spec.arguments.end();
    const double same = amp ? kSameLossInLow : kSameLoss;
    const auto agree = [&](const char* field, double& reference) {
      const double value = first.number(field);
      if (std::isnan(value)) return;
      if (std::isnan(reference)) reference = value;
      if (std::abs(value - reference) > same * std::abs(reference))
        throw ChildError(std::string("result differs from the other variants: ") + field + " " + first.text(field) +
                         ", expected " + std::to_string(reference));
    };
    if (spec.processes == 1) agree("start_loss", start_loss_);
    const bool normalises_batch = spec.devices == 1 && !spec.accumulates;
    if (spec.group != "pytorch" && (normalises_batch || first.number("batch_norm") == 0))
      agree("check_loss", check_loss_);
  }

  // Runs `steps` steps. Returns seconds per step of the slowest rank.
  double run(Running& one, int steps) {
    for (auto& rank : one.ranks) rank->send("run " + std::to_string(steps));
    double seconds = 0, bytes = 0;
    for (auto& rank : one.ranks) {
      const Reply reply = rank->read(options_.timeout);
      if (rank == one.ranks.front()) one.reply = reply;
      seconds = std::max(seconds, reply.number("seconds"));
      bytes += reply.number("peak_bytes");
    }
    // CPU: a process's peak covers all its replicas. GPU: a process reports the peak of its fullest device.
    const int devices = options_.gpus.empty() ? one.result->spec.devices : one.result->spec.processes;
    one.result->bytes_per_device = std::max(one.result->bytes_per_device, bytes / devices);
    return seconds / steps;
  }

  void calibrate(Running& one) {
    const double seconds = run(one, options_.warmup);
    one.steps = options_.steps ? options_.steps
                               : std::clamp(static_cast<int>(std::lround(options_.seconds / seconds)), 1, 100000);
  }

  double watch(Running& one) {
    std::this_thread::sleep_for(kPause);
    const auto idle_seconds = [&] {
      double sum = 0;
      for (const Running& other : running_)
        if (&other != &one) sum += other.cpu_seconds();
      return sum;
    };
    const auto start = Clock::now();
    const double machine = machine_cpu_seconds(), own = one.cpu_seconds(), idle = idle_seconds();
    const double seconds = run(one, one.steps);
    const double idle_used = idle_seconds() - idle, used = machine_cpu_seconds() - machine;
    load_.elapsed += std::chrono::duration<double>(Clock::now() - start).count();
    load_.idle += idle_used;
    load_.others += std::max(0.0, used - (one.cpu_seconds() - own) - idle_used);
    return seconds;
  }

  template <typename Work>
  void attempt(Running& one, const Work& work) {
    try {
      work();
    } catch (const ChildError& error) {
      one.result->note = error.what();
      one.result->seconds_per_step.clear();
    }
  }
  void drop_failed() {
    for (Running& one : running_)
      if (!one.result->note.empty())
        for (auto& rank : one.ranks) ::kill(rank->id(), SIGKILL);
    std::erase_if(running_, [](const Running& one) { return !one.result->note.empty(); });
  }

  void add_facts() {
    std::string versions;
    for (const std::string& version : versions_) versions += (versions.empty() ? "" : ", ") + version;
    result_.facts = {{"versions", versions},
                     {"others_cores", shown(Cell(load_.elapsed > 0 ? load_.others / load_.elapsed : 0), 3)},
                     {"idle_programs_cores", shown(Cell(load_.elapsed > 0 ? load_.idle / load_.elapsed : 0), 3)}};
  }

  const StepOptions options_;
  Progress progress_;
  const SharedFile inputs_;                 // weights and batches, shared by all variants
  std::list<SharedFile> rendezvous_files_;  // one per PyTorch variant, for its ranks
  StepResult result_;
  std::vector<Running> running_;
  Load load_;
  std::set<std::string> versions_;
  bool inputs_ready_ = false;
  double parameter_bytes_ = 0;
  double start_loss_ = std::nan(""), check_loss_ = std::nan("");
};

}  // namespace

StepResult measure_steps(const StepOptions& options, const std::vector<VariantSpec>& variants, Progress progress) {
  return Rounds(options, variants, progress).measure();
}

}  // namespace dp_bench
