#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/files_support.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// A run folder with an empty checkpoints/.
struct DiskRun {
  TemporaryFolder scratch;  // on the default file system
  std::string folder = scratch / "checkpoints";
  DiskRun() { fs::create_directory(folder); }
  void save(const std::string& name, std::int64_t step) const {
    dp::save_checkpoint(folder + "/" + name, checkpoint_at(step));
  }
  std::string find() const { return dp::find_checkpoint(scratch.path()); }
  // The name of the checkpoint that find() returns, or "".
  std::string found() const { return fs::path(find()).filename().string(); }
  bool holds(const std::string& name, std::int64_t step) const {
    return is_checkpoint_at(dp::load_checkpoint(folder + "/" + name), step);
  }
};

pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

// A zombie: an ended process that its parent has not waited for.
struct Zombie {
  pid_t id = ::fork();
  Zombie() {
    if (id == 0) ::_exit(0);
    siginfo_t ended{};
    ::waitid(P_PID, static_cast<id_t>(id), &ended, WEXITED | WNOWAIT);
  }
  ~Zombie() { ::waitpid(id, nullptr, 0); }
};

std::string leftover(const std::string& base, const std::string& tag, pid_t owner) {
  return "." + base + "." + tag + "-" + std::to_string(owner) + "-0";
}

}  // namespace

TEST_CASE("a checkpoint is loaded as it was saved, again and again") {
  const DiskRun run;
  for (const std::int64_t step : {7, 8, 1000000007}) {
    run.save("last", step);
    CHECK(run.holds("last", step));
    CHECK(count_hidden(run.folder) == 0);
  }
  CHECK(run.find() == run.folder + "/last");
  const std::vector<std::string> files = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"};
  for (const std::string& name : files) CHECK(fs::is_regular_file(run.folder + "/last/" + name));
  CHECK(dp::read_safetensors(run.folder + "/last/model.safetensors").size() == 2);
  dp::save_checkpoint(run.folder + "/best/", checkpoint_at(3));  // a trailing slash is not part of the name
  CHECK(run.holds("best", 3));
}

TEST_CASE("a checkpoint may lack optimizer state and hold a state that JSON cannot represent") {
  const DiskRun run;
  dp::Checkpoint checkpoint = checkpoint_at(1);
  checkpoint.optimizer = {};
  checkpoint.state.best_top1 = NAN;
  checkpoint.state.dataset = "\"\\\n\x01 \xff";
  checkpoint.state.config.clear();
  dp::save_checkpoint(run.folder + "/last", checkpoint);
  const dp::Checkpoint loaded = dp::load_checkpoint(run.folder + "/last");
  CHECK(loaded.optimizer.optimizer.empty());
  CHECK(loaded.optimizer.tensors.empty());
  CHECK(loaded.state.best_top1 == -1);
  CHECK(loaded.state.dataset == "\"\\\n\x01 \xef\xbf\xbd");
  CHECK(loaded.state.config.empty());
}

TEST_CASE("a checkpoint stores the loss scale bit for bit, if there is one") {
  const DiskRun run;
  dp::Checkpoint checkpoint = checkpoint_at(1);
  dp::save_checkpoint(run.folder + "/last", checkpoint);
  CHECK_FALSE(dp::load_checkpoint(run.folder + "/last").state.loss_scale.has_value());
  for (const float scale : {65536.0f, 0x1p-126f, 0x1.fffffep127f, 1.1f}) {
    checkpoint.state.loss_scale = dp::LossScale{scale, 1999};
    dp::save_checkpoint(run.folder + "/last", checkpoint);
    const dp::TrainState loaded = dp::load_checkpoint(run.folder + "/last").state;
    REQUIRE(loaded.loss_scale.has_value());
    CHECK(loaded.loss_scale->scale == scale);
    CHECK(loaded.loss_scale->good_steps == 1999);
  }
}

TEST_CASE("the newest checkpoint is found, and `last` wins a tie") {
  const DiskRun run;
  CHECK(run.found().empty());
  CHECK(dp::find_checkpoint(run.scratch / "none").empty());
  run.save("best", 5);
  CHECK(run.found() == "best");
  run.save("step-7", 7);
  CHECK(run.found() == "step-7");
  run.save("last", 7);
  CHECK(run.found() == "last");
  run.save("step-10", 10);
  run.save("step-9", 9);
  CHECK(run.found() == "step-10");
  for (const char* name : {"best", "step-12"}) run.save(name, 12);
  CHECK(run.found() == "step-12");  // for equal steps, best has the lowest priority
  run.save("best", 5);
  fs::remove_all(run.folder + "/step-12");
  run.save("other", 99);
  run.save("step-x", 99);
  CHECK(run.found() == "step-10");
}

TEST_CASE("an unreadable checkpoint is passed over, never removed") {
  const DiskRun run;
  run.save("best", 5);
  run.save("last", 9);
  std::string weights = read_bytes(run.folder + "/last/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_bytes(run.folder + "/last/model.safetensors", weights);
  CHECK(run.found() == "best");
  CHECK(fs::exists(run.folder + "/last/state.json"));
  run.save("last", 10);  // replaces the first one
  CHECK(run.holds("last", 10));
}

TEST_CASE("a passed-over checkpoint that may be newer is reported with the reason") {
  const DiskRun run;
  run.save("step-3", 3);
  run.save("best", 5);
  run.save("last", 9);
  run.save("step-4", 4);
  write_bytes(run.folder + "/last/manifest.json", "{");
  write_bytes(run.folder + "/step-3/manifest.json", "{");  // older than the found one
  fs::remove(run.folder + "/step-4/state.json");           // step unknown: may be newer
  run.save("step-1", 7);
  const std::string leftover_of_living = run.folder + "/" + leftover("last", "tmp", ::getppid());
  fs::rename(run.folder + "/step-1", leftover_of_living);
  fs::remove(leftover_of_living + "/model.safetensors");
  std::vector<dp::PassedOver> passed;
  CHECK(fs::path(dp::find_checkpoint(run.scratch.path(), &passed)).filename() == "best");
  REQUIRE(passed.size() == 2);
  CHECK(passed[0].folder == run.folder + "/last");
  CHECK_THAT(passed[0].reason, Catch::Contains("manifest.json: is not valid JSON"));
  CHECK(passed[1].folder == run.folder + "/step-4");
  CHECK_THAT(passed[1].reason, Catch::Contains("state.json: opening it failed"));
  for (const char* name : {"step-3", "best", "last", "step-4"}) fs::remove_all(run.folder + "/" + name);
  passed.clear();
  CHECK(dp::find_checkpoint(run.scratch.path(), &passed).empty());
  CHECK(passed.empty());  // a leftover is not a checkpoint
}

TEST_CASE("a symbolic link to a checkpoint is loaded by its name and never found by a search") {
  const DiskRun run;
  dp::save_checkpoint(run.scratch / "elsewhere", checkpoint_at(9));
  fs::create_directory_symlink(run.scratch / "elsewhere", run.folder + "/last");
  CHECK(run.holds("last", 9));
  CHECK(run.find().empty());
  run.save("best", 5);
  CHECK(run.found() == "best");
}

TEST_CASE("the remains of a killed save are completed if whole and newer, and removed otherwise") {
  const pid_t dead = dead_process();
  const Zombie zombie;
  for (const pid_t owner : {dead, zombie.id, ::getpid()}) {
    const DiskRun run;
    run.save("last", 5);
    const auto plant = [&](const std::string& name, std::int64_t step) {
      run.save("step-1", step);
      fs::rename(run.folder + "/step-1", run.folder + "/" + name);
    };
    plant(leftover("last", "tmp", owner), 6);  // killed before the exchange
    CHECK(run.found() == "last");
    CHECK(run.holds("last", 6));
    plant(leftover("last", "tmp", owner), 4);  // killed after the exchange
    CHECK(run.found() == "last");
    CHECK(run.holds("last", 6));
    plant(leftover("best", "old", owner), 2);  // killed between two renames
    plant(leftover("best", "tmp", owner), 3);
    plant(leftover("last", "tmp", owner), 9);
    fs::resize_file(run.folder + "/" + leftover("last", "tmp", owner) + "/optimizer.safetensors", 10);  // incomplete
    CHECK(run.found() == "last");
    CHECK(run.holds("last", 6));
    CHECK(run.holds("best", 3));
    CHECK(count_hidden(run.folder) == 0);
  }
}

TEST_CASE("the remains of a killed save of the same step are older and are removed") {
  const DiskRun run;
  dp::Checkpoint checkpoint = checkpoint_at(5);
  checkpoint.state.config = R"({"run": "older"})";
  dp::save_checkpoint(run.folder + "/last", checkpoint);
  fs::rename(run.folder + "/last", run.folder + "/" + leftover("last", "tmp", ::getpid()));
  run.save("last", 5);
  CHECK(run.found() == "last");
  CHECK(run.holds("last", 5));
  CHECK(count_hidden(run.folder) == 0);
}

TEST_CASE("files that a living process may still be writing are left alone") {
  const DiskRun run;
  run.save("last", 5);
  const std::string name = run.folder + "/" + leftover("last", "tmp", ::getppid());
  run.save("step-1", 8);
  fs::rename(run.folder + "/step-1", name);
  CHECK(run.found() == "last");
  CHECK(run.holds("last", 5));
  CHECK(fs::exists(name));
  fs::remove_all(run.folder + "/last");  // no other checkpoint exists
  CHECK(run.find() == name);
}

TEST_CASE("a readable remainder is loaded in place if its checkpoint is unreadable") {
  const DiskRun run;
  run.save("last", 5);
  const std::string name = run.folder + "/" + leftover("last", "tmp", ::getpid());
  fs::rename(run.folder + "/last", name);
  run.save("last", 6);
  fs::remove(run.folder + "/last/manifest.json");
  CHECK(run.find() == name);
  CHECK(is_checkpoint_at(dp::load_checkpoint(name), 5));
  CHECK(fs::exists(run.folder + "/last/model.safetensors"));
}

TEST_CASE("files with similar names are left alone") {
  const DiskRun run;
  run.save("last", 5);
  const std::string dead = std::to_string(dead_process());
  for (const std::string& name :
       {".other.tmp-" + dead + "-0", std::string(".last.tmp-0-0"), ".last.tmp-" + dead, std::string(".last.tmp--1-0"),
        std::string(".last.tmp-99999999999999999999-0"), ".last.bak-" + dead + "-0", "last.tmp-" + dead + "-0"}) {
    fs::create_directory(run.folder + "/" + name);
    CHECK(run.found() == "last");
    CHECK(fs::exists(run.folder + "/" + name));
  }
}

TEST_CASE("a save replaces checkpoints only") {
  const DiskRun run;
  const auto saved = [&](const std::string& path) {
    return outcome_of([&] { dp::save_checkpoint(path, checkpoint_at(1)); });
  };
  write_bytes(run.folder + "/file", "precious");
  fs::create_directory(run.folder + "/home");
  write_bytes(run.folder + "/home/thesis.tex", "precious");
  for (const char* name : {"/file", "/home"}) {
    const Outcome outcome = saved(run.folder + name);
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.text, Catch::Contains("exists and is not a checkpoint"));
  }
  CHECK(read_bytes(run.folder + "/home/thesis.tex") == "precious");
  fs::create_directory(run.folder + "/empty");
  CHECK(saved(run.folder + "/empty").text.empty());
  for (const char* name :
       {"manifest.json", "model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"}) {
    INFO("a damaged checkpoint, of which stays " << name);
    const std::string damaged = run.folder + "/damaged";
    fs::remove_all(damaged);
    fs::create_directory(damaged);
    write_bytes(damaged + "/" + name, "");
    CHECK(saved(damaged).text.empty());
  }
  CHECK(saved(run.folder + "/no/last").code == 7);
  CHECK_THAT(saved(run.folder + "/no/last").text, Catch::Contains("No such file or directory"));
  for (const std::string nameless : {"", ".", "..", "/"}) CHECK(saved(nameless).code == 2);
  CHECK(saved(run.folder + std::string("/new\0name", 9)).code == 2);
  CHECK_FALSE(fs::exists(run.folder + "/new"));
  fs::create_directory_symlink(run.folder + "/home", run.folder + "/link");
  CHECK(saved(run.folder + "/link").text.empty());  // replaces the link, not its target
  CHECK(!fs::is_symlink(run.folder + "/link"));
  CHECK(read_bytes(run.folder + "/home/thesis.tex") == "precious");
  CHECK(count_hidden(run.folder) == 0);
}
