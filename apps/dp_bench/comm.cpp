#include "comm.h"

#include <dp/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "child.h"

namespace dp_bench {
namespace {

// A communicator and the kind of ranks that it connects.
struct Setup {
  std::string key, title, name;  // name: the backend's
  enum class Ranks { threads, processes, mpirun } ranks = Ranks::threads;
};

std::vector<Setup> setups_for(const CommOptions& options) {
  using Ranks = Setup::Ranks;
  std::vector<Setup> all;
  if (!options.gpus.empty())
    all = {{"p2p", "p2p, GPUs of one process", "p2p"},
           {"nccl", "nccl, GPUs of one process", "nccl"},
           {"nccl-processes", "nccl, a process for each GPU", "nccl", Ranks::processes}};
  else
    all = {{"host", "host, threads of one process", "host"},
           {"host-processes", "host, processes", "host", Ranks::processes},
           {"mpi", "mpi, processes", "mpi", Ranks::mpirun}};
  if (options.communicators.empty()) return all;
  std::string keys;
  for (const Setup& setup : all) keys += (keys.empty() ? "" : ", ") + setup.key;
  for (const std::string& key : options.communicators)
    if (std::none_of(all.begin(), all.end(), [&](const Setup& setup) { return setup.key == key; }))
      throw dp::Error(dp::ErrorCode::usage,
                      "--communicators: '" + key + "' is not available here; choose from " + keys);
  std::erase_if(all, [&](const Setup& setup) {
    return std::find(options.communicators.begin(), options.communicators.end(), setup.key) ==
           options.communicators.end();
  });
  return all;
}

Row row_of(const Reply& reply) {
  std::vector<double> seconds;
  std::istringstream words(reply.text("seconds"));
  for (double each = 0; words >> each;) seconds.push_back(each);
  const int ranks = static_cast<int>(reply.number("ranks"));
  const double bytes = 4 * reply.number("count"), algorithm = bytes / median(seconds) * 1e-9;
  Row row;
  row.cells = {reply.text("collective"),
               bytes,
               reply.number("count"),
               reply.text("type"),
               reply.text("redop"),
               reply.number("root"),
               median(seconds) * 1e6,
               quantile(seconds, 0.25) * 1e6,
               quantile(seconds, 0.75) * 1e6,
               algorithm,
               algorithm * bus_factor(reply.text("collective"), ranks),
               reply.number("wrong")};
  row.samples = seconds;
  return row;
}

// Allows root and more ranks than cores. Turns off MPI's binding, because the ranks pin themselves.
std::vector<std::unique_ptr<Child>> start_by_mpirun(std::vector<std::string> words, int ranks) {
  const std::string count = std::to_string(ranks);
  words.insert(words.begin(), {"mpirun", "-np", count});
  words.insert(words.end(), {"--ranks", count});
  const std::vector<std::string> variables{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                           "OMPI_MCA_rmaps_base_oversubscribe=1",
                                           "OMPI_MCA_hwloc_base_binding_policy=none"};
  std::vector<std::unique_ptr<Child>> started;
  started.push_back(std::make_unique<Child>(words, variables));
  return started;
}

// Adds one row per collective and size. On failure, adds a row with the reason.
void measure_setup(const CommOptions& options, const Setup& setup, Section& section) {
  std::vector<std::string> words{find_program("bench_comm"),
                                 "--begin",
                                 shown(Cell(options.begin), 0),
                                 "--end",
                                 shown(Cell(options.end), 0),
                                 "--factor",
                                 shown(Cell(options.factor), 3),
                                 "--rounds",
                                 std::to_string(options.rounds),
                                 "--seconds",
                                 shown(Cell(options.seconds), 4),
                                 "--threads",
                                 std::to_string(options.threads),
                                 "--comm",
                                 setup.name};
  if (!options.gpus.empty())
    words.insert(words.end(), {"--gpus", options.gpus});
  else
    words.insert(words.end(), {"--cpu", std::to_string(options.ranks)});
  std::string list;
  for (const std::string& collective : options.collectives) list += (list.empty() ? "" : ",") + collective;
  if (!list.empty()) words.insert(words.end(), {"--collectives", list});
  std::string failure;
  try {
    auto ranks = setup.ranks == Setup::Ranks::mpirun
                     ? start_by_mpirun(words, options.ranks)
                     : start_ranks(words, setup.ranks == Setup::Ranks::processes ? options.ranks : 1, options.timeout);
    ranks.front()->read_all([&](const std::string& line) {
      const Reply reply = parse_reply(line);
      if (reply.word == "row") section.rows.push_back(row_of(reply));
      if (reply.word == "error") failure = reply.text("message");
    });
  } catch (const ChildError& error) {
    Row row{{setup.title}, Kind::absent, failure.empty() ? error.what() : failure, {}};
    section.rows.push_back(row);
  }
}

}  // namespace

std::vector<std::string> collective_names() {
  return {"all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_parts", "gather", "scatter"};
}

double bus_factor(const std::string& collective, int ranks) {
  const double n = ranks;
  if (collective == "all_reduce") return 2 * (n - 1) / n;
  if (collective == "broadcast" || collective == "reduce") return 1;
  return (n - 1) / n;
}

double parse_bytes(const std::string& option, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::string units = "KMG";
  const std::size_t at =
      unit.size() == 1 ? units.find(static_cast<char>(std::toupper(unit.front()))) : std::string::npos;
  const bool good = error == std::errc() && number > 0 && (unit.empty() || at != std::string::npos);
  const double bytes =
      good ? std::floor(number * std::pow(1024.0, unit.empty() ? 0.0 : static_cast<double>(at) + 1)) : 0;
  if (!(bytes >= 4) || bytes > 1e11)
    throw dp::Error(dp::ErrorCode::usage,
                    option + ": '" + text + "' is not a size from 4 bytes to 100 GB, such as 8, 64K, 128M or 1G");
  return bytes;
}

Report measure_comm(CommOptions options, Progress progress) {
  if (options.begin > options.end)
    throw dp::Error(dp::ErrorCode::usage, "-b is greater than -e; give the smaller size as -b");
  choose_devices(options.gpus, options.ranks, /*least=*/2);
  Report report{"comm", "", {}, {}};
  report.title = "Collectives between " +
                 (options.gpus.empty() ? std::to_string(options.ranks) + " ranks on the CPU" : "GPUs " + options.gpus);
  report.facts = {
      {"columns", "as in nccl-tests; in-place calls only; time: mean over the ranks of back-to-back calls, median of " +
                      std::to_string(options.rounds) + " rounds"},
      {"bus", "algbw times 2(n-1)/n (all_reduce), 1 (broadcast, reduce) or (n-1)/n (the others)"}};
  for (const Setup& setup : setups_for(options)) {
    progress("measuring " + setup.title);
    Section section{setup.key, setup.title, "", {}, {}, {}};
    section.columns = {{"collective", "collective"}, {"size", "size (B)", 0},
                       {"count", "count", 0},        {"type", "type"},
                       {"redop", "redop"},           {"root", "root", 0},
                       {"time", "time (us)", 2},     {"time_q1", "quartile", 2},
                       {"time_q3", "quartile", 2},   {"algbw", "algbw (GB/s)", 2},
                       {"busbw", "busbw (GB/s)", 2}, {"wrong", "#wrong", 0}};
    measure_setup(options, setup, section);
    report.sections.push_back(std::move(section));
  }
  return report;
}

}  // namespace dp_bench
