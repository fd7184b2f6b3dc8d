// report.html of small runs.
#include "dp/report.h"

#include <unistd.h>

#include <cctype>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "train/report/page_data.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::page_data;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
using Json = nlohmann::ordered_json;

Json only_run(const std::string& file) {
  const Json runs = page_data(read_text(file)).at("runs");
  REQUIRE(runs.size() == 1);
  return runs[0];
}

std::size_t lines_of(const Json& run, const char* kind) {
  std::size_t count = 0;
  for (const Json& line : run.at("metrics")) count += line.at("kind") == kind;
  return count;
}

TEST_CASE("a run writes a page after each epoch and at its end, with its records") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.parallel.ema_decay = 0.9;
  options.parallel.clip_grad_norm = 1;
  options.program = "tiny 1.0";
  Json during;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 8) during = only_run(temp / "run/report.html");
  };
  tiny_run(options, callbacks);
  CHECK(during.at("summary").is_null());
  CHECK(during.at("warnings").at(0) == "there is no summary yet: the run is active, or has failed");
  const Json run = only_run(temp / "run/report.html");
  CHECK(run.at("name") == "run");
  CHECK(run.at("results").at("end") == "complete");
  CHECK(run.at("results").at("steps") == "21");
  CHECK_THAT(run.at("warnings").at(0).get<std::string>(), Catch::StartsWith("the test set has 130 images"));
  CHECK(lines_of(run, "train") == 21);
  CHECK(lines_of(run, "eval") == 6);
  for (const char* field : {"loss", "top1", "images_per_second", "lr", "loading_share", "grad_norm"})
    CHECK(run.at("metrics").at(0).contains(field));
  REQUIRE(run.at("phases").size() == 2);
  for (const char* phase : {"forward", "backward", "waiting", "data loading"})
    CHECK(run.at("phases").at(1).at(phase) >= 0);
  const Json& part = run.at("env").at("parts").at(0);
  CHECK(part.at("program") == "tiny 1.0");
  CHECK(part.at("devices").at(1) == "cpu");
  CHECK(part.at("memory").at(1).at("activations") > 0);
  CHECK_THAT(run.at("config").get<std::string>(), Catch::Contains("clip-grad-norm = 1"));
  CHECK(run.at("predictions").at("average") == true);
  CHECK(run.at("predictions").at("samples") == 130);
}

TEST_CASE("the state of a run is described while it runs, after its end, and after a kill") {
  const TemporaryFolder temp;
  const std::string run = temp / "run";
  TrainerOptions options = tiny_options(run);
  options.sync_checkpoints = true;
  std::string during, early;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step == 1) early = describe_run(run);
    if (report.step == 8) during = describe_run(run);
  };
  tiny_run(options, callbacks);
  const std::string process = std::to_string(::getpid());
  CHECK_THAT(early,
             Catch::StartsWith("run: running, process " + process + "\nprogress    step 1 of 21 (4.8 %), epoch 0"));
  CHECK_THAT(early, Catch::Contains("\ntest        none yet\ncheckpoint  none yet\n"));
  CHECK_THAT(during, Catch::Contains("step 8 of 21 (38.1 %), epoch 1"));
  CHECK_THAT(during, Catch::Contains(", time left 0:"));
  CHECK_THAT(during, Catch::Contains("\ntest        Acc@1 "));
  CHECK_THAT(during, Catch::Contains("\ncheckpoint  step 7, 0:"));
  CHECK_THAT(describe_run(run), Catch::StartsWith("run: ended, complete\nprogress    step 21 of 21 (100.0 %)"));
  CHECK_THAT(describe_run(run), !Catch::Contains("time left"));
  std::filesystem::remove(run + "/summary.json");  // as after a kill
  std::ofstream(run + "/.lock");
  CHECK_THAT(describe_run(run), Catch::StartsWith("run: not running on this host, and without a summary\n"));
  CHECK_THROWS_AS(describe_run(temp.path()), Error);
}

TEST_CASE("the end of a run is described by variables and one JSON object with the same values") {
  const TemporaryFolder temp;
  const std::string run = temp / "run";
  const auto ended = [&](int exit_status) {
    const auto variables = variables_of_end(run, exit_status);
    return std::map<std::string, std::string>(variables.begin(), variables.end());
  };
  CHECK(ended(3) ==
        std::map<std::string, std::string>{{"DP_RUN", run},
                                           {"DP_STATUS", "failed"},
                                           {"DP_EXIT_CODE", "3"},
                                           {"DP_TEXT", "run: failed, exit status 3"},
                                           {"DP_JSON", R"({"run":")" + run + R"(","status":"failed","exit_code":3,)" +
                                                           R"("text":"run: failed, exit status 3"})"}});
  tiny_run(tiny_options(run), {});
  const auto complete = ended(0);
  CHECK_THAT(complete.at("DP_TEXT"),
             Catch::StartsWith("run: complete, exit status 0\nprogress    step 21 of 21 (100.0 %)"));
  const Json json = Json::parse(complete.at("DP_JSON"));
  CHECK(json.size() == complete.size() - 1);
  for (const auto& [name, value] : json.items()) {
    std::string variable = "DP_" + name;
    for (char& c : variable) c = static_cast<char>(std::toupper(c));
    CHECK(complete.at(variable) == (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  for (const char* const name : {"step", "last_step", "checkpoint_step"}) CHECK(json.at(name) == 21);
  CHECK(json.at("test_top1") == Json::parse(read_text(run + "/summary.json")).at("top1"));
  for (const auto& [status, word] : {std::pair(128 + SIGUSR1, "interrupted"), {128 + SIGKILL, "failed"}})
    CHECK(ended(status).at("DP_STATUS") == word);
}

TEST_CASE("with --profile the page and summary.json have the time of each layer") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.profile = true;
  options.parallel.trace_first = 4;
  options.parallel.trace_steps = 3;
  const RunSummary summary = tiny_run(options);
  REQUIRE_FALSE(summary.layers.empty());
  const Json layers = Json::parse(read_text(temp / "summary.json"))["layers"];
  REQUIRE(layers.size() == summary.layers.size());
  CHECK(layers[0]["name"] == summary.layers[0].name);
  CHECK(layers[0]["seconds"] == summary.layers[0].seconds);
  CHECK(only_run(temp / "report.html").at("summary").at("layers") == layers);
}

TEST_CASE("env.json has the memory of each replica by purpose") {
  const TemporaryFolder temp;
  Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), tiny_options(temp.path()));
  trainer.run();
  const auto memory = nlohmann::json::parse(read_text(temp / "env.json"))["parts"][0]["memory"];
  REQUIRE(memory.size() == 2);
  for (int replica = 0; replica < 2; ++replica) {
    const MemoryUse use = trainer.net().memory_use(replica);
    const auto& found = memory[static_cast<std::size_t>(replica)];
    CHECK(found["weights"] == use.weights);
    std::size_t sum = 0;
    for (const auto& bytes : found) sum += bytes.get<std::size_t>();
    CHECK(sum == use.total());
  }
}

TEST_CASE("a record of a crash is shown as far as it can be read") {
  const TemporaryFolder temp;
  tiny_run(tiny_options(temp / "run"));
  const auto shown = [&](const std::string& crash) {
    std::ofstream(temp / "run/crash.json") << crash;
    write_report({temp / "run"}, temp / "page.html");
    const Json run = only_run(temp / "page.html");
    return describe_run(temp / "run") + (run.at("crashes").empty() ? "" : run.at("crashes")[0].get<std::string>());
  };
  const std::string whole = shown(R"({"what":"SIGSEGV","time":1700000000,"process":12,"thread":13,
    "replicas":[{"replica":1,"phase":"backward","recent":[
      {"step":3,"phase":"reduce","name":"reduce","bucket":2,"bytes":40,"us_ago":1500}]}],
    "threads":[{"name":"worker 1","thread":13,"stack":["f","g a.cpp:3"]},{"name":"main","thread":12,"stack":["poll"]}]})");
  for (const char* part : {"note        crashed at 2023-11-1", ": SIGSEGV\n", "process 12 crashed",
                           "thread worker 1, which crashed\n  f\n  g a.cpp:3\n", "thread main\n  poll\n",
                           "     1.500  step 3  reduce     reduce of bucket 2  40 bytes\n"})
    CHECK_THAT(whole, Catch::Contains(part));
  CHECK_THAT(shown(R"({"what":"the \u001b[31mverdict","thread":0,"stack":["dp+0x1",7]})"),
             Catch::Contains("note        stalled at an unknown time: the \\x1b[31mverdict") &&
                 Catch::Contains("addresses only\n  dp+0x1\n"));
  for (const char* damaged :
       {"", "{", "[]", "7", R"({"what":7,"threads":[1,{"stack":{}}],"replicas":[[],{"recent":3}]})",
        R"({"replicas":{"recent":[[]]},"time":1e300,"thread":-1})"})
    CHECK_NOTHROW(shown(damaged));
  CHECK(shown("{").find("crashed") == std::string::npos);
}

TEST_CASE("an interrupted run has its page, which says so first") {
  const TemporaryFolder temp;
  run_until(tiny_options(temp.path()), 10);
  CHECK(only_run(temp / "report.html").at("warnings").at(0) == "the run was interrupted before its end");
}

TEST_CASE("a page about several runs, and the history of a resumed run") {
  const TemporaryFolder temp;
  for (const auto& [name, lr] : {std::pair("low", 0.01f), {"high", 0.1f}}) {
    TrainerOptions options = tiny_options(temp / name);
    options.optimizer = Sgd{.lr = lr};
    run_until(options, 2);
    options.resume = "auto";
    options.parallel.clip_grad_norm = 2;
    options.max_steps = 4;
    tiny_run(options);
  }
  write_report({temp / "low", temp / "high/"}, temp / "both.html");
  const Json runs = page_data(read_text(temp / "both.html")).at("runs");
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].at("name") == "low");
  CHECK(runs[1].at("name") == "high");
  for (const Json& run : runs) {
    REQUIRE(lines_of(run, "resumed") == 1);
    const Json& resumed = run.at("metrics").back();
    CHECK(resumed.at("step") == 2);
    CHECK_THAT(resumed.at("changes").dump(), Catch::Contains(R"("option":"clip-grad-norm","before":null,"now":2.0)"));
  }
}

TEST_CASE("texts of a run cannot become markup of its page") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "<b>&");
  options.dataset_name = "<script>alert(1)</script>";
  options.program = "\"><img onerror=x>";
  options.max_steps = 1;
  tiny_run(options);
  const std::string page = read_text(temp / "<b>&/report.html");
  CHECK_THAT(page, !Catch::Contains("<img") && !Catch::Contains("<b>") && !Catch::Contains("<script>alert"));
  CHECK(page_data(page).at("runs").at(0).at("env").at("parts").at(0).at("program") == options.program);
}

}  // namespace
