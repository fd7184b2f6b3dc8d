// Failing steps and full disks: what stays on disk and what is reported.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/catch.h"
#include "support/failing.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

namespace fs = std::filesystem;
using namespace dp;
using dp::test::expect_error;
using dp::test::FailEnvironment;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;

// Simulates a full disk: no file can grow beyond 16 bytes during its lifetime.
class FullDisk {
 public:
  FullDisk() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit small = before_;
    small.rlim_cur = 16;
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

bool all_finite(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (tensor.dtype() == DType::f32)
      for (const float value : tensor.span<float>())
        if (!std::isfinite(value)) return false;
  return true;
}

TEST_CASE("NaN ends the run, and no checkpoint contains it") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 2;
  {
    const FailEnvironment nan("nan:forward:dev1:step9");
    expect_error(ErrorCode::nonfinite, {"step 9", "not finite", temp / "checkpoints/last", "--on-nonfinite skip"},
                 [&] { tiny_run(options); });
  }
  const Checkpoint last = load_checkpoint(temp / "checkpoints/last");
  CHECK(last.state.step == 8);
  CHECK(all_finite(last.weights));

  options.resume = "auto";  // resumes from the last good checkpoint
  CHECK(tiny_run(options).weights_sha256 == tiny_run(tiny_options()).weights_sha256);
}

// The last update spoiled the weights; the step's own loss and gradient were finite.
TEST_CASE("weights with NaN never replace the checkpoint `last`") {
  for (const char* place : {"fc.weight", "bn.running_var"}) {
    INFO(place);
    const TemporaryFolder temp;
    TrainerOptions options = tiny_options(temp.path());
    options.save_every_steps = 3;
    options.sync_checkpoints = true;  // the save finds the NaN before the next step does
    Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options);
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) {
      if (report.step != 6) return;
      NamedTensors weights = trainer.net().weights();
      for (auto& [name, tensor] : weights)
        if (name == place) tensor.data<float>()[1] = NAN;
      trainer.net().set_weights(weights);
    };
    expect_error(ErrorCode::nonfinite, {place, temp / "checkpoints/last"}, [&] { trainer.run(callbacks); });
    const Checkpoint last = load_checkpoint(temp / "checkpoints/last");
    CHECK(last.state.step == 3);
    CHECK(all_finite(last.weights));
  }
}

TEST_CASE("NaN before the first checkpoint reports that there is none") {
  const FailEnvironment nan("nan:forward:dev0:step1");
  expect_error(ErrorCode::nonfinite, {"there is no checkpoint yet"}, [] { tiny_run(tiny_options()); });
}

TEST_CASE("an exception on a replica ends the run with its place and releases the folder") {
  const TemporaryFolder temp;
  {
    const FailEnvironment thrown("throw:backward:dev1:step4");
    CHECK_THROWS_AS(tiny_run(tiny_options(temp.path())), Error);
  }
  TrainerOptions options = tiny_options(temp.path());
  options.resume = "auto";
  CHECK(tiny_run(options).steps == 21);
}

TEST_CASE("a checkpoint that cannot be written is a warning if another will follow") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 3;
  options.sync_checkpoints = true;  // the write is over before the next step
  std::unique_ptr<FullDisk> full;
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    full.reset();
    if (report.step == 12) full = std::make_unique<FullDisk>();  // the save after this step fails
  };
  callbacks.on_message = [&](const std::string& text) { said += text + "\n"; };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(said.find("was not written") != std::string::npos);
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 21);
  CHECK(summary.weights_sha256 == tiny_run(tiny_options()).weights_sha256);
}

TEST_CASE("a warning that repeats is shown once, and counted at the end of the run") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 1;
  options.sync_checkpoints = true;  // nothing writes while the folder is removed
  options.checkpoint_hist = 2;
  std::vector<std::string> said;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 5) fs::remove_all(temp / "checkpoints");
  };
  callbacks.on_message = [&](const std::string& text) {
    if (text.find("was not written") != std::string::npos) said.push_back(text);
  };
  expect_error(ErrorCode::io, {"checkpoints"}, [&] { tiny_run(options, callbacks); });  // the last save
  CHECK(said.size() <= 6);  // the first, and the number of all, for `last`, `best` and step-N
  CHECK(said.back().find(" times, last: this checkpoint was not written: ") == 2);  // of 16 saves
}

TEST_CASE("records that cannot be written are reported once each, and neither end the run nor damage a file") {
  const TemporaryFolder temp;
  std::unique_ptr<FullDisk> full;
  std::vector<std::string> said;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 3) full = std::make_unique<FullDisk>();
    if (report.step == 10) full.reset();
  };
  callbacks.on_message = [&](const std::string& text) { said.push_back(text); };
  const RunSummary summary = tiny_run(tiny_options(temp.path()), callbacks);
  CHECK(summary.weights_sha256 == tiny_run(tiny_options()).weights_sha256);
  for (const char* file : {"metrics", "report.html"})
    CHECK(std::ranges::count_if(said, [&](const std::string& text) {
            return text.find(file) != std::string::npos && text.find(" times, last: ") == std::string::npos;
          }) == 1);
  std::vector<int> steps;
  std::istringstream lines(test::read_text(temp / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.at("kind") == "train") steps.push_back(record.at("step"));
  }
  CHECK(steps == std::vector{1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21});
  CHECK(fs::exists(temp / "report.html"));
}

TEST_CASE("a last checkpoint that cannot be written is an I/O error") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.sync_checkpoints = true;  // the one before is complete
  std::unique_ptr<FullDisk> full;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 21) full = std::make_unique<FullDisk>();
  };
  expect_error(ErrorCode::io, {"checkpoints"}, [&] {
    const std::shared_ptr<void> restore(nullptr, [&](void*) { full.reset(); });
    tiny_run(options, callbacks);
  });
  CHECK(load_checkpoint(temp / "checkpoints/last").state.step == 14);  // the previous checkpoint stays
}

TEST_CASE("a summary file that cannot be written is detected before training") {
  TrainerOptions options = tiny_options();
  options.summary_file = "/proc/none/summary.json";
  bool started = false;
  TrainerCallbacks callbacks;
  callbacks.on_start = [&](const DataParallel&, const TrainerOptions&) { started = true; };
  expect_error(ErrorCode::io, {"/proc/none/summary.json"}, [&] { tiny_run(options, callbacks); });
  CHECK_FALSE(started);
}

}  // namespace
