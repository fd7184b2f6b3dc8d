#include "ops.h"

#include <dp/device.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>

#include "child.h"

namespace dp_bench {
namespace {

struct Op {
  std::string kind, label, implementation, convolution;
  double times = 0, flops = 0, bytes = 0;
  std::vector<double> ours{}, theirs{};  // seconds per round; theirs: empty if PyTorch has no such single op
};

std::vector<double> numbers_of(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream words(text);
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

// "64x32x32 -> 64, 3x3/2", or ", 3x3/1 in 64 groups"; the numbers are those of OpWork::convolution.
std::string geometry(const std::string& convolution) {
  const std::vector<double> n = numbers_of(convolution);
  if (n.size() != 14) return "";
  const auto whole = [&](std::size_t i) { return std::to_string(static_cast<int>(n[i])); };
  if (n[2] == 1 && n[5] == 1) return whole(1) + " -> " + whole(4);
  const std::string groups = n[13] > 1 ? " in " + whole(13) + " groups" : "";
  return whole(1) + "x" + whole(2) + "x" + whole(3) + " -> " + whole(4) + ", " + whole(5) + "x" + whole(6) + "/" +
         whole(7) + groups;
}

class Ops {
 public:
  Ops(const OpsOptions& options, Progress progress) : options_(options), progress_(progress) {}

  Report measure() {
    start();
    start_pytorch();
    for (int round = 0; round < options_.rounds; ++round) {
      ask(
          *dp_, [](Op& op) { return &op.ours; }, [](const Op&) { return true; });
      if (pytorch_)
        ask(
            *pytorch_, [](Op& op) { return &op.theirs; }, [](const Op& op) { return !op.convolution.empty(); });
      progress_("round " + std::to_string(round + 1) + " of " + std::to_string(options_.rounds));
    }
    return report();
  }

 private:
  void start() {
    std::vector<std::string> words{find_program("bench_ops"),
                                   "--model",
                                   options_.network.model,
                                   "--input",
                                   shape_text(options_.network.input, ","),
                                   "--classes",
                                   std::to_string(options_.network.classes),
                                   "--batch",
                                   std::to_string(options_.run.batch_size),
                                   "--threads",
                                   std::to_string(options_.threads)};
    if (!options_.gpu.empty()) words.insert(words.end(), {"--gpu", options_.gpu});
    if (options_.run.parallel.exact_convolutions) words.emplace_back("--exact-conv");
    for (const std::string& word : amp_words(options_.run)) words.push_back(word);
    dp_ = std::make_unique<Child>(words, std::vector<std::string>{});
    while (true) {
      const Reply reply = dp_->read(options_.timeout);
      if (reply.word == "ready") break;
      if (reply.word == "rates") {
        gflops_ = reply.number("gflops");
        gbytes_ = reply.number("gbytes");
        source_ = reply.text("source");
      } else if (reply.word == "op") {
        ops_.push_back({reply.text("kind"), reply.text("label"), reply.text("implementation"),
                        reply.text("convolution"), reply.number("times"), reply.number("flops"),
                        reply.number("bytes")});
      }
    }
  }

  void start_pytorch() {
    if (options_.without_pytorch) {
      pytorch_note_ = "skipped by --without-pytorch";
      return;
    }
    std::vector<std::string> words{options_.python, find_program("pytorch_ops.py"), "--threads",
                                   std::to_string(options_.threads)};
    if (!options_.gpu.empty()) words.insert(words.end(), {"--gpu", options_.gpu});
    for (const std::string& word : amp_words(options_.run)) words.push_back(word);
    const std::string threads = std::to_string(options_.threads);
    std::vector<std::string> variables{"OMP_NUM_THREADS=" + threads, "OPENBLAS_NUM_THREADS=" + threads,
                                       "OMP_PROC_BIND=true", "OMP_PLACES=cores"};
    try {
      pytorch_ = std::make_unique<Child>(words, variables);
      for (const Op& op : ops_)
        if (!op.convolution.empty()) pytorch_->send("op " + op.kind + " " + op.convolution);
      pytorch_->send("go");
      const Reply reply = pytorch_->read(options_.timeout);
      pytorch_note_ = reply.word == "ready" ? "torch " + reply.text("version") : reply.text("reason");
      if (reply.word != "ready") pytorch_.reset();
    } catch (const ChildError& error) {
      pytorch_note_ = error.what();
      pytorch_.reset();
    }
  }

  template <typename Times, typename Wanted>
  void ask(Child& program, const Times& times, const Wanted& wanted) {
    program.send("run " + std::to_string(options_.steps));
    const std::vector<double> seconds = numbers_of(program.read(options_.timeout).text("seconds"));
    std::size_t at = 0;
    for (Op& op : ops_)
      if (wanted(op) && at < seconds.size()) times(op)->push_back(seconds[at++]);
  }

  double floor_of(const Op& op) const {
    double seconds = 0;
    if (std::isfinite(gflops_)) seconds = std::max(seconds, op.flops / gflops_ * 1e-9);
    if (std::isfinite(gbytes_)) seconds = std::max(seconds, op.bytes / gbytes_ * 1e-9);
    return seconds;
  }

  Report report() const {
    Report report{"ops", "", {}, {}};
    report.title = "Ops of " + options_.network.model + " on " + shape_text(options_.network.input, "x") + ", batch " +
                   std::to_string(options_.run.batch_size) + ", " +
                   (options_.gpu.empty() ? std::to_string(options_.threads) + " threads" : "GPU " + options_.gpu);
    report.facts = {{"rounds", std::to_string(options_.rounds) + " of " + std::to_string(options_.steps) + " steps"},
                    {"PyTorch", pytorch_note_}};
    if (std::isfinite(gflops_))
      report.facts.insert(report.facts.end(), {{"peak", shown(Cell(gflops_), 1) + " GFLOP/s"},
                                               {"copy", shown(Cell(gbytes_), 1) + " GB/s"},
                                               {"rates", source_}});
    report.sections = {sums(), section()};
    return report;
  }

  Section section() const {
    Section section{"ops", "Ops of a training step", "", {}, {}, Bars{2, 3, 4, true}};
    section.columns = {{"op", "op"},
                       {"times", "times", 0},
                       {"ms", "ms", 3},
                       {"ms_q1", "quartile", 3},
                       {"ms_q3", "quartile", 3},
                       {"rate", "rate", 1},
                       {"unit", "unit"},
                       {"floor_ms", "floor ms", 3},
                       {"step_ms", "ms in a step", 2},
                       {"of_floor", "ms / floor", 2},
                       {"pytorch_ms", "PyTorch ms", 3},
                       {"pytorch_ratio", "PyTorch / dp", 2},
                       {"implementation", "implementation"}};
    for (const Op& op : ops_) {
      const double seconds = median(op.ours), floor = floor_of(op);
      const bool works = op.flops > 0;
      Row row;
      const std::string where = geometry(op.convolution);
      row.cells = {op.label + " " + op.kind + (where.empty() ? "" : " (" + where + ")"),
                   op.times,
                   seconds * 1e3,
                   quantile(op.ours, 0.25) * 1e3,
                   quantile(op.ours, 0.75) * 1e3,
                   works ? op.flops / seconds * 1e-9 : op.bytes / seconds * 1e-9,
                   std::string(works ? "GFLOP/s" : "GB/s"),
                   floor > 0 ? Cell(floor * 1e3) : Cell(),
                   op.times * seconds * 1e3,
                   floor > 0 ? Cell(seconds / floor) : Cell(),
                   op.theirs.empty() ? Cell() : Cell(median(op.theirs) * 1e3),
                   op.theirs.empty() ? Cell() : Cell(median(op.theirs) / seconds),
                   op.implementation};
      row.samples = op.ours;
      section.rows.push_back(row);
    }
    section.text =
        "Ops of equal shapes share a row. Floor: the arithmetic or the memory traffic at the rates of this machine, "
        "whichever takes longer; an algorithm with fewer multiplications (Winograd) or a tensor in a cache can be "
        "faster. "
        "PyTorch: the same convolution or matrix product alone, in the faster of both memory formats.";
    return section;
  }

  Section sums() const {
    double all = 0, floors = 0, compared = 0, pytorch = 0;
    for (const Op& op : ops_) {
      all += op.times * median(op.ours);
      floors += op.times * floor_of(op);
      if (op.theirs.empty()) continue;
      compared += op.times * median(op.ours);
      pytorch += op.times * median(op.theirs);
    }
    Section section{"sums", "All ops of a step", "", {}, {}, {}};
    section.columns = {{"op", "ops"},
                       {"step_ms", "ms in a step", 2},
                       {"floor_ms", "floor ms", 2},
                       {"of_floor", "ms / floor", 2},
                       {"pytorch_ms", "PyTorch ms", 2},
                       {"pytorch_ratio", "PyTorch / dp", 2}};
    Row row{{std::string("all"), all * 1e3}, Kind::measured, "", {}};
    if (floors > 0) row.cells.insert(row.cells.end(), {floors * 1e3, all / floors});
    section.rows.push_back(row);
    if (compared > 0)
      section.rows.push_back({{std::string("ops also measured in PyTorch"), compared * 1e3, Cell(), Cell(),
                               pytorch * 1e3, pytorch / compared},
                              Kind::measured,
                              "",
                              {}});
    return section;
  }

  const OpsOptions options_;
  Progress progress_;
  std::unique_ptr<Child> dp_, pytorch_;
  std::string pytorch_note_, source_;
  std::vector<Op> ops_;
  double gflops_ = std::nan(""), gbytes_ = std::nan("");
};

}  // namespace

Report measure_ops(OpsOptions options, Progress progress) {
  options.network = resolved(options.network);
  if (options.gpu.empty() && !options.on_cpu)
    if (const std::vector<int> ids = usable_gpus(); !ids.empty()) options.gpu = std::to_string(ids.front());
  if (options.threads == 0) options.threads = dp::available_cores().cores;
  return Ops(options, progress).measure();
}

}  // namespace dp_bench
