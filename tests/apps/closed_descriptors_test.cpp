// dp_train started with closed standard descriptors must not write into a wrong file. A few runs in the ordinary tests,
// 100 in the slow tests.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/idx_files.h"
#include "apps/processes.h"
#include "apps/run_program.h"
#include "dp/checkpoint.h"
#include "support/catch.h"
#include "support/patience.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

Words run_of(const Words& engine, const Words& more) {
  return Words{"--dataset",    "mnist", "--data-path",  ".",        "--model",        "mlp", "-b", "16", "-p", "1",
               "--output-dir", "run",   "--save-every", "1,1steps", "--deterministic"} +
         engine + more;
}

// A shell command that closes the standard descriptors of a bit mask.
Words closing(int closed) {
  std::string command = "exec \"$@\"";
  for (const int descriptor : {0, 1, 2})
    if ((closed >> descriptor & 1) != 0)
      command += " " + std::to_string(descriptor) + (descriptor == 0 ? "<&-" : ">&-");
  return {"/bin/sh", "-c", command, "sh"};
}

// One letter for each line: whether it is valid.
std::string validity(const std::string& text, const std::function<bool(const std::string&)>& is_valid) {
  std::string letters;
  for (const std::string& line : lines_of(text)) letters += is_valid(line) ? 'r' : '?';
  return letters;
}

// What is the same in every run: files with times are reduced to the validity of their parts.
std::string without_times(const std::string& name, const std::string& text) {
  if (name == "metrics.jsonl")
    return validity(text, [](const std::string& line) { return nlohmann::json::accept(line); });
  if (name == "metrics.csv")
    return validity(text, [](const std::string& line) { return std::count(line.begin(), line.end(), ',') == 14; });
  if (name == "metrics.prom")
    return validity(text, [](const std::string& line) { return line.starts_with("# ") || line.starts_with("dp_"); });
  if (name == "summary.json") return nlohmann::json::parse(text)["weights_sha256"];
  if (name == "env.json") return nlohmann::json::parse(text)["parts"].at(0)["end"];
  if (name == "report.html") return text.substr(0, 15) + text.substr(text.size() - 15);
  if (name == "events") return text.substr(12 + 9, 15);  // "brain.Event:2"
  return name == "config.toml" ? text.substr(text.find("model = ")) : text;
}

// The files below a folder.
std::map<std::string, std::string> content(const fs::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string path = entry.path().lexically_relative(folder).string();
    if (path.starts_with("events.out.tfevents.")) path = "events";
    found[path] = without_times(path, read_text(entry.path().string()));
  }
  return found;
}

// The closed descriptors must refer to /dev/null.
void check_descriptors(pid_t process, int closed) {
  std::error_code gone;
  for (const int descriptor : {0, 1, 2})
    if ((closed >> descriptor & 1) != 0) {
      INFO("descriptor " << descriptor);
      CHECK(fs::read_symlink("/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor), gone) ==
            "/dev/null");
    }
}

// A complete run must write the same files as with open descriptors. An interrupted run must leave a checkpoint.
void check_runs(const Words& engine) {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Words whole = run_of(engine, {"--max-steps", "3"});
  REQUIRE(run_dp_train(whole, temp.path()).code == 0);
  const auto wanted = content(temp / "run");
  for (int i = 0; i < DP_CLOSED_RUNS; ++i) {
    const int closed = 7 - 3 * i % 7;  // 7, 4, 1, 5, 2, 6, 3
    INFO("run " << i << ", closed " << closed);
    fs::remove_all(temp / "run");
    if (i % 2 == 0) {
      CHECK(Program(whole, temp.path(), {}, closing(closed)).wait().code == 0);
      const auto found = content(temp / "run");
      for (const auto& [path, text] : wanted) {
        INFO(path);
        CHECK(found.contains(path));
        CHECK((found.contains(path) && found.at(path) == text));
      }
      CHECK(found.size() == wanted.size());
      continue;
    }
    Program program(run_of(engine, {"--epochs", "1000000"}), temp.path(), {"DP_FAIL=stall:backward:dev0:20ms"},
                    closing(closed));
    CHECK(becomes([&] { return fs::exists(temp / "run/checkpoints/last/manifest.json"); }));
    check_descriptors(program.id(), closed);
    if (engine == kDdp)
      for (const pid_t rank : children_of(program.id())) check_descriptors(rank, closed & 1);
    ::kill(program.id(), SIGTERM);
    CHECK(program.wait().code == 128 + SIGTERM);  // reads its output, which may fill the pipe
    CHECK(dp::load_checkpoint(temp / "run/checkpoints/last").state.step > 0);
    CHECK(content(temp / "run").at("metrics.jsonl").find('?') == std::string::npos);
    CHECK(read_text(temp / "run/config.toml").find("dp_train: ") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("closed standard descriptors: one process writes no byte into a wrong file") { check_runs(kDp); }
TEST_CASE("closed standard descriptors: ranks write no byte into a wrong file") { check_runs(kDdp); }
