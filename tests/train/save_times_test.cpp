// When a run saves, and what it says before the disk is full.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/scoped_file_ops.h"
#include "dp/run_options.h"
#include "engine/train/host_memory.h"
#include "support/catch.h"
#include "support/fake_time.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using namespace dp::test;

// The steps at which a run of seven steps, each of ten seconds, saves.
std::set<int> saved_steps(void (*set)(TrainerOptions&)) {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.epochs = 1;
  options.save_every_epochs = 0;
  options.checkpoint_hist = 9;
  set(options);
  TimeOfRates time;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport&) { time.pass(10); };
  tiny_run(options, callbacks);
  std::set<int> steps;
  for (int step = 1; step <= 7; ++step)
    if (std::filesystem::exists(temp / ("checkpoints/step-" + std::to_string(step)))) steps.insert(step);
  return steps;
}

TEST_CASE("a run saves once so many seconds have passed since its last save") {
  CHECK(saved_steps([](auto&) {}) == std::set{7});
  CHECK(saved_steps([](auto& o) { o.save_every_seconds = 20; }) == std::set{2, 4, 6, 7});
  CHECK(saved_steps([](auto& o) { o.save_every_seconds = 25; }) == std::set{3, 6, 7});
  CHECK(saved_steps([](auto& o) { o.save_every_seconds = 25, o.save_every_steps = 4; }) == std::set{3, 4, 7});
  CHECK(saved_steps([](auto& o) { o.save_every_seconds = 71; }) == std::set{7});
}

class FreeSpace final : public UnsyncedOps {
 public:
  std::int64_t free_bytes(const char*) override { return bytes; }
  std::int64_t bytes = 0;
};

// What a run says of the disk, if after each checkpoint there is room for so many more.
std::vector<std::string> said_of_space(const std::vector<double>& room) {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.sync_checkpoints = true;
  options.eval_every = 0;  // no checkpoint `best`
  const auto size = static_cast<double>(checkpoint_bytes(tiny_model(), options));
  FreeSpace space;
  const ScopedFileOps scoped(space);
  std::size_t next = 0;
  const auto proceed = [&] { space.bytes = static_cast<std::int64_t>(room[std::min(next++, room.size() - 1)] * size); };
  proceed();
  std::vector<std::string> said;
  TrainerCallbacks callbacks;
  callbacks.on_checkpoint = [&](const std::string&) { proceed(); };
  callbacks.on_message = [&](const std::string& text) {
    if (text.find("room for") != std::string::npos) said.push_back(text);
  };
  tiny_run(options, callbacks);
  return said;
}

TEST_CASE("a run warns two saves before the disk is full, and again when the next one does not fit") {
  CHECK(said_of_space({1000, 2}).empty());
  const auto one = said_of_space({1.9});
  REQUIRE_FALSE(one.empty());
  CHECK_THAT(one.front(), Catch::Contains("room for only one further checkpoint") && Catch::Contains("KiB are free") &&
                              Catch::Contains("free some space"));
  const auto both = said_of_space({1000, 1.5, 0.9});
  REQUIRE(both.size() >= 2);
  CHECK_THAT(both[0], Catch::Contains("room for only one further"));
  CHECK_THAT(both[1], Catch::Contains("room for no further"));
}

TEST_CASE("an unknown amount of free space is no warning") { CHECK(said_of_space({-1}).empty()); }

TEST_CASE("the times of --save-every are read and written as a list of epochs, steps and seconds") {
  const auto& table = run_options();
  const auto read = [&](const std::string& text) {
    TrainerOptions options;
    table.set(*table.find("save-every"), options, text);
    return options;
  };
  struct Case {
    std::string text;
    std::int64_t epochs, steps, seconds;
    std::string written;
  };
  for (const Case& c :
       {Case{"0", 0, 0, 0, "0"}, Case{"3", 3, 0, 0, "3"}, Case{"3epochs", 3, 0, 0, "3"},
        Case{"500steps", 0, 500, 0, "500steps"}, Case{"90s", 0, 0, 90, "90s"}, Case{"600s", 0, 0, 600, "10m"},
        Case{"2h", 0, 0, 7200, "2h"}, Case{"10m,500steps,1", 1, 500, 600, "1,500steps,10m"}}) {
    INFO(c.text);
    const TrainerOptions options = read(c.text);
    CHECK(options.save_every_epochs == c.epochs);
    CHECK(options.save_every_steps == c.steps);
    CHECK(options.save_every_seconds == c.seconds);
    CHECK(table.text("save-every", options) == c.written);
  }
  CHECK(table.text("save-every", TrainerOptions{}) == "1");
}

}  // namespace
