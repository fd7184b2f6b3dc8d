// A finished run that is resumed adds nothing to its records.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::lines_of;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

struct Records {
  std::string lines, table;
  std::set<std::string> event_files;
  bool operator==(const Records&) const = default;
};

Records records_of(const TemporaryFolder& folder) {
  Records records{read_text(folder / "metrics.jsonl"), read_text(folder / "metrics.csv"), {}};
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (entry.path().filename().string().starts_with("events.")) records.event_files.insert(entry.path().filename());
  return records;
}

}  // namespace

TEST_CASE("a finished run that is resumed adds no line, row or event file, and has the same result") {
  const auto with = [](auto change) {
    TrainerOptions options = tiny_options();
    change(options);
    return options;
  };
  const TrainerOptions kinds[] = {
      tiny_options(),
      with([](TrainerOptions& o) { o.max_steps = 10; }),  // within an epoch
      with([](TrainerOptions& o) { o.max_steps = 14; }),  // at the end of one
      with([](TrainerOptions& o) { o.parallel.ema_decay = 0.9; }),
      with([](TrainerOptions& o) { o.optimizer = Sgd{.lr = 1e-9f}, o.patience = 1; }),
      with([](TrainerOptions& o) { o.checkpoint_hist = 1, o.eval_every = 2; }),
  };
  for (TrainerOptions options : kinds) {
    const TemporaryFolder temp;
    options.output_dir = temp.path();
    const RunSummary first = tiny_run(options);
    const Records before = records_of(temp);
    const auto state = load_checkpoint(temp / "checkpoints/last").state;
    options.resume = "auto";
    for (const bool killed : {false, true}) {
      INFO(first.end << ", " << first.steps << " steps, killed before its end: " << killed);
      if (killed) fs::remove(temp / "summary.json"), fs::remove(temp / "report.html");
      const RunSummary again = tiny_run(options);
      CHECK(records_of(temp) == before);
      CHECK(again.top1 == first.top1);
      CHECK(again.weights_sha256 == first.weights_sha256);
      CHECK(again.end == first.end);
      CHECK(fs::exists(temp / "summary.json"));
      CHECK(fs::exists(temp / "report.html"));
      const auto state_again = load_checkpoint(temp / "checkpoints/last").state;
      CHECK(state_again.epoch == state.epoch);
      CHECK(state_again.since_best == state.since_best);
    }
  }
}

TEST_CASE("a finished run whose last evaluation is not recorded records it once, for its last epoch") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  tiny_run(options);
  std::vector<std::string> lines = lines_of(read_text(temp / "metrics.jsonl"));
  const std::string lost = lines.back();
  REQUIRE(lost.find("\"eval\"") != std::string::npos);
  lines.pop_back();
  std::string rest;
  for (const std::string& line : lines) rest += line + "\n";
  test::write_text(temp / "metrics.jsonl", rest);
  options.resume = "auto";
  for (int time = 0; time < 2; ++time) {
    tiny_run(options);
    const auto now = lines_of(read_text(temp / "metrics.jsonl"));
    CHECK(std::ranges::count_if(now, [](const std::string& line) {
            const auto record = nlohmann::json::parse(line);
            return record.at("kind") == "eval" && record.at("step") == 21;
          }) == 1);
    CHECK(nlohmann::json::parse(now.back()).at("epoch") == 2);
  }
}

TEST_CASE("a finished run of which only the average's evaluation is not recorded records that one, as an event too") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.parallel.ema_decay = 0.9;
  tiny_run(options);
  const Records whole = records_of(temp);
  std::vector<std::string> lines = lines_of(whole.lines);
  const auto lost = nlohmann::json::parse(lines.back());
  REQUIRE((lost.at("kind") == "eval" && lost.at("average") == true));
  lines.pop_back();
  std::string rest;
  for (const std::string& line : lines) rest += line + "\n";
  test::write_text(temp / "metrics.jsonl", rest);
  options.resume = "auto";
  tiny_run(options);
  const Records now = records_of(temp);
  const auto is_lost = [&](const std::string& line) {
    const auto record = nlohmann::json::parse(line);
    return record.at("kind") == "eval" && record.at("step") == lost.at("step") && record.at("average") == true;
  };
  CHECK(std::ranges::count_if(lines_of(now.lines), is_lost) == 1);
  CHECK(now.event_files.size() == whole.event_files.size() + 1);
}
