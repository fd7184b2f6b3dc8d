// The parts of dp_train between the command line and the trainer: images, processes, the run folder.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/run_program.h"
#include "dp/dp.h"
#include "dp_train/devices.h"
#include "dp_train/images.h"
#include "dp_train/signals.h"
#include "dp_train/trainer_options.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using dp_train::Command;

Command synthetic(const std::string& input, std::int64_t images = 6) {
  Command command;
  command.input = input;
  command.images = images;
  return command;
}

TEST_CASE("synthetic images have a default shape and number of classes, and at most 64 Mi bytes each") {
  const auto format = [](const Command& command) { return dp_train::image_format(command, "synthetic"); };
  CHECK(format({}).shape == dp::Shape{1, 28, 28});
  CHECK(format({}).classes == 10);
  CHECK(format(synthetic("3,20,10")).shape == dp::Shape{3, 20, 10});
  for (const dp::Shape& largest : {dp::Shape{1 << 26, 1, 1}, dp::Shape{1, 1 << 26, 1}, dp::Shape{1, 1, 1 << 26},
                                   dp::Shape{1 << 13, 1 << 13, 1}, dp::Shape{4, 4096, 4096}})
    CHECK(format(synthetic(std::to_string(largest[0]) + "," + std::to_string(largest[1]) + "," +
                           std::to_string(largest[2])))
              .shape == largest);
  for (const char* larger : {"4,4096,4097", "8192,8193,1", "2,67108864,1"})
    CHECK_THROWS_WITH(format(synthetic(larger)),
                      "--input " + std::string(larger) + " is too large: an image has at most 67108864 bytes");
  CHECK(dp_train::image_format({}, "cifar100").shape == dp::Shape{3, 32, 32});
  CHECK(dp_train::image_format({}, "cifar100").classes == 100);
}

TEST_CASE("the synthetic test set has a sixth of the training images, rounded up") {
  for (const auto& [train, test] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {6, 1}, {7, 2}, {60, 10}, {61, 11}}) {
    const dp::DatasetPair data = dp_train::open_images(synthetic("1,2,2", train), "synthetic");
    CHECK(data.train->size() == train);
    CHECK(data.test->size() == test);
  }
  const dp::DatasetPair data = dp_train::open_images({}, "synthetic");
  CHECK(data.train->size() == 60000);
  CHECK(data.test->size() == 10000);
  CHECK(data.train->classes() == 10);
  Command seven;
  seven.trainer.parallel.seed = 7;
  CHECK(data.train->image(3) != dp_train::open_images(seven, "synthetic").train->image(3));
}

TEST_CASE("estimate-memory prints the bytes of each replica by purpose, and the largest batch that fits") {
  const TemporaryFolder temp;
  const Outcome run = run_dp_train({"estimate-memory", "--model", "mlp", "--dataset", "synthetic", "-b", "64", "--cpu",
                                    "1", "--replicas-per-device", "4", "--threads-per-replica", "1"},
                                   temp.path());
  INFO(run.out << run.err);
  CHECK(run.code == 0);
  const dp::Model model = dp::models::find("mlp").make({1, 28, 28}, 10);
  dp::DataParallelOptions options;
  options.devices.assign(4, dp::cpus(1).front());
  options.threads_per_replica = 1;
  std::string expected =
      "mlp, synthetic, global batch 64, MiB per replica\n"
      "replica   weights gradients optimizer statistics   average activations workspace     other"
      "     total\n";
  int replica = 0;
  for (const dp::MemoryUse& use : dp::estimate_memory(model, options, {64}, {128})) {
    const auto mebibytes = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    expected += fmt::format("{:>7} {:9.1f} {:9.1f} {:9.1f} {:10.2f} {:9.1f} {:11.1f} {:9.1f} {:9.1f} {:9.1f}\n",
                            replica++, mebibytes(use.weights), mebibytes(use.gradients), mebibytes(use.optimizer),
                            mebibytes(use.statistics), mebibytes(use.average), mebibytes(use.activations),
                            mebibytes(use.workspace), mebibytes(use.other), mebibytes(use.total()));
  }
  CHECK(replica == 4);
  REQUIRE(run.out.starts_with(expected + "host memory of the process, MiB\n"));
  for (const char* part :
       {"  program, libraries, data set, plans\n", "  CPU replicas, with short last batches, in whole pages\n",
        "  loader, decoding, cached images\n", "  copies for a checkpoint\n", "  in all\n"})
    CHECK_THAT(run.out, Catch::Contains(part));
  const std::string largest = "largest global batch in ";
  REQUIRE(run.out.find(largest) != std::string::npos);
  const std::string rest = run.out.substr(run.out.find(largest) + largest.size());
  CHECK_THAT(rest, Catch::Contains(" MiB per device (90 % of the free memory): "));
  // Other programs change the free memory. Four replicas share it, less a tenth.
  const double free = static_cast<double>(dp::free_memory(options.devices.front())) / (1 << 20);
  CHECK(std::stod(rest) > 0.6 * 0.9 * free / 4);
  CHECK(std::stod(rest) < 1.6 * 0.9 * free / 4);
}

TEST_CASE("options for several hosts require --engine ddp, and ranks refuse unsupported options") {
  const auto refusal = [](const std::function<void(Command&)>& change, const char* engine) {
    Command command;
    command.engine = engine;
    change(command);
    try {
      dp_train::check_processes(command);
    } catch (const dp::Error& error) {
      CHECK(error.code() == dp::ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string several = "--nnodes, --node-rank, --master-addr and --master-port require --engine ddp";
  CHECK(refusal([](Command& c) { c.nnodes = 2; }, "dp") == several);
  CHECK(refusal([](Command& c) { c.node_rank = 1; }, "dp") == several);
  CHECK(refusal([](Command& c) { c.master_addr = "a"; }, "dp") == several);
  CHECK(refusal([](Command& c) { c.master_port = 1; }, "dp") == several);
  CHECK(refusal([](Command& c) { c.selftest = c.estimate_memory = true, c.replicas_per_device = 2; }, "dp").empty());
  CHECK(refusal([](Command& c) { c.replicas_per_device = 2; }, "ddp") ==
        "--engine ddp runs one process per device; remove --replicas-per-device");
  CHECK(refusal([](Command& c) { c.selftest = true; }, "ddp") == "selftest supports only --engine dp");
  CHECK(refusal([](Command& c) { c.estimate_memory = true; }, "ddp") ==
        "estimate-memory supports only --engine dp; a rank is a process with one replica, so ask for --cpu 1 (or one "
        "GPU) "
        "and a rank's share of the batch");
  CHECK(refusal([](Command& c) { c.node_rank = c.nnodes = 2, c.master_addr = "a"; }, "ddp") ==
        "--node-rank 2 must be less than --nnodes 2");
  CHECK(refusal([](Command& c) { c.nnodes = 2; }, "ddp") == "--nnodes requires --master-addr, the address of host 0");
  CHECK(refusal([](Command& c) { c.nnodes = 2, c.node_rank = 1, c.master_addr = "a"; }, "ddp").empty());
  CHECK(refusal([](Command& c) { c.master_addr = "a", c.master_port = 1; }, "ddp").empty());
}

TEST_CASE("a resumed run uses the folder of its checkpoint") {
  const TemporaryFolder temp;
  fs::create_directories(temp / "run/checkpoints/step-4");
  const auto folder = [](const std::function<void(Command&)>& change) {
    Command command;
    change(command);
    return dp_train::output_folder(command).path();
  };
  const std::string run = temp / "run", real = fs::canonical(run).string();
  CHECK(folder([&](Command& c) { c.trainer.resume = run; }) == run);
  CHECK(folder([&](Command& c) { c.trainer.resume = run + "/checkpoints/step-4"; }) == real);
  CHECK(folder([&](Command& c) { c.trainer.resume = run, c.output_dir = "other"; }) == "other");
  CHECK(folder([&](Command& c) { c.output_dir = "a", c.experiment = "b"; }) == "a/b");
  CHECK(folder([&](Command& c) { c.experiment = "b"; }) == "runs/b");
  CHECK(folder([&](Command& c) { c.trainer.resume = run, c.trainer.dry_run = true; }).empty());
  CHECK(folder([&](Command& c) { c.trainer.resume = run, c.evaluate = true; }).empty());
  CHECK(folder([&](Command& c) { c.trainer.resume = run, c.print_plan = true; }).empty());
  CHECK(folder([&](Command& c) { c.output_dir = "a", c.trainer.dry_run = true; }) == "a");
}

const Words kRunFolder{"--dataset", "synthetic", "--images", "32", "--model",     "mlp",
                       "--cpu",     "1",         "-b",       "16", "--max-steps", "1"};

TEST_CASE("an augmented run that ended inside an epoch goes on with the same bits on other replicas and threads") {
  const TemporaryFolder temp;
  const auto ran = [&](const Words& words, const std::string& folder) {
    const Outcome outcome =
        run_dp_train(words + Words{"--logical-shards", "2", "--threads-per-replica", "1", "--quiet"}, temp.path());
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    std::ifstream in(temp / (folder + "/summary.json"));
    return nlohmann::json::parse(in).at("weights_sha256").get<std::string>();
  };
  const auto start = [](const std::string& steps, const std::string& folder) {
    return Words{"--dataset",   "synthetic", "--input",      "3,12,10", "--classes", "4", "--images",       "64",
                 "--model",     "mlp",       "-b",           "16",      "--epochs",  "2", "--lr-scheduler", "constant",
                 "--max-steps", steps,       "--output-dir", folder};
  };
  const Words augmented{"--flip",     "alternating", "--auto-augment", "ra",  "--random-erase", "0.5",
                        "--rotation", "10",          "--color-jitter", "0.4", "--crop-padding", "2"};
  const std::string plain = ran(start("8", "plain") + Words{"--cpu", "1"}, "plain");
  const std::string whole = ran(start("8", "whole") + augmented + Words{"--cpu", "1", "-j", "1"}, "whole");
  CHECK(whole != plain);
  CHECK(ran(start("6", "part") + augmented + Words{"--cpu", "2", "-j", "3"}, "part") != whole);
  CHECK(ran({"--resume", "part", "--max-steps", "8", "--cpu", "1", "-j", "2"}, "part") == whole);
}

TEST_CASE("if the default run folder exists, the next free number is appended to its name") {
  const TemporaryFolder temp;
  fs::create_directory(temp / "runs");
  const std::time_t now = std::time(nullptr);
  std::string taken;
  // The folder exists for every second at which the run may start.
  for (std::time_t second = now; second < now + 120; ++second) {
    std::tm parts{};
    ::localtime_r(&second, &parts);
    char time[32];
    std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &parts);
    for (const char* number : {"", "-2"}) fs::create_directory(temp / ("runs/" + std::string(time) + "_mlp" + number));
  }
  const Outcome outcome = run_dp_train(kRunFolder, temp.path());
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  Words found;
  for (const auto& entry : fs::directory_iterator(temp / "runs"))
    if (!fs::is_empty(entry.path())) found.push_back(entry.path().filename().string());
  REQUIRE(found.size() == 1);
  CHECK_THAT(found.front(), Catch::EndsWith("_mlp-3"));
}

TEST_CASE("if the folder cannot be created under runs/, the error names --output-dir") {
  const TemporaryFolder temp;
  write_text(temp / "runs", "a file");
  check_bad_input({kRunFolder, 7, {"cannot create the run folder 'runs/", "_mlp'", "; choose one with --output-dir"}},
                  temp.path());
  CHECK(read_text(temp / "runs") == "a file");
}

// A run decides by it whether an error is one of its own or follows from the signal.
TEST_CASE("a signal is known from its arrival on, whenever the signal thread runs") {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      dp_train::Signals& signals = dp_train::handle_signals();
      signals.announces.store(false);
      ::kill(::getpid(), SIGTERM);
      while (signals.received.load() == 0)
        if (dp_train::received_signal() != SIGTERM) ::_exit(1);
      ::_exit(dp_train::received_signal());
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == SIGTERM);
  }
}

TEST_CASE("only rank 0 makes the run's folder") {
  const TemporaryFolder temp;
  const Words words{"--engine", "ddp", "--dataset", "synthetic", "--images", "64", "--model",     "mlp",
                    "--cpu",    "2",   "-b",        "16",        "-p",       "1",  "--max-steps", "4"};
  Program program(words, temp.path(), {"DP_FAIL=stall:forward:dev0:step2:1000ms"});
  program.wait_for("[1/4]");  // all ranks have joined and planned
  CHECK(std::distance(fs::directory_iterator(temp / "runs"), {}) == 1);
  CHECK(program.wait().code == 0);
  CHECK(std::distance(fs::directory_iterator(temp / "runs"), {}) == 1);
}

}  // namespace
