// dp_bench from a user's point of view.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/dp_bench/step.h"
#include "bench/run_bench.h"
#include "dp/device.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;
using nlohmann::json;

TEST_CASE("invalid flags end with exit code 2 and one line that states the remedy") {
  const std::vector<std::pair<std::string, std::string>> table{
      {"", "subcommand"},
      {"walk", "--help"},
      {"step -b 0", "'0' is not a whole number"},
      {"step -b 1 --cpu 2", "at least one image per replica"},
      {"step --cpu 0", "'0' is not"},
      {"step --cpu 2 --threads 3", "give a multiple"},
      {"step --model vgg", "vgg"},
      {"step --model resnet18 --input 3,2", "(3, 2)"},
      {"step --variants horovod", "dp-sharded"},
      {"step --rounds x", "'x' is not"},
      {"step --cpu 2 --gpus 0", "excludes"},
      {"step --cpu 2 --num-gpus 1", "excludes"},
      {"comm --num-gpus 2 --gpus 0", "excludes"},
      {"ops --cpu --gpu 0", "excludes"},
      {"comm -b 8X", "8X"},
      {"comm -b 1M -e 8", "give the smaller size as -b"},
      {"comm --collectives all_to_all", "all_to_all"},
      {"comm --cpu 2 --communicators pigeon", "host-processes"},
      {"ops --steps 0", "'0' is not"},
      {"scaling -b 2 --cpu 3", "at least one image per replica"}};
  for (const auto& [arguments, fragment] : table) {
    const BenchOutcome outcome = run_bench(arguments);
    INFO(arguments << ": " << outcome.text);
    CHECK(outcome.code == 2);
    CHECK(outcome.text.starts_with("dp_bench: error: "));
    CHECK(std::count(outcome.text.begin(), outcome.text.end(), '\n') == 1);
    CHECK(outcome.text.find(fragment) != std::string::npos);
  }
}

TEST_CASE("an output file that cannot be written ends with exit code 7 before anything is measured") {
  const BenchOutcome outcome = run_bench("step --json /no/such/folder/x.json");
  CHECK(outcome.code == 7);
  CHECK(outcome.text.find("starting") == std::string::npos);
}

TEST_CASE("a GPU that does not exist ends with exit code 4") {
  if (dp::probe_devices(dp::DeviceKind::cuda).count > 0) DP_SKIP("there is a GPU");
  CHECK(run_bench("step --gpus 0").code == 4);
  CHECK(run_bench("step --num-gpus 2").code == 4);
  CHECK(run_bench("comm --gpus 0,1").code == 4);
}

TEST_CASE("without --gpus and --cpu, GPUs are measured if they are usable, otherwise two CPU replicas") {
  const std::size_t gpus = dp_bench::usable_gpus().size();
  const json out = run_for_json("step --model mlp -b 64 --batches 2 --rounds 2 --steps 1 --warmup 1 --variants dp1");
  CHECK_THAT(out.at("title").get<std::string>(), Catch::Contains(gpus > 0 ? "GPUs 0" : "2 CPU replicas"));
}

TEST_CASE("step: goals are shown with --goals only") {
  const std::string words =
      "step --cpu 2 --model mlp -b 8 --batches 2 --rounds 2 --steps 1 --warmup 1 --variants dp1,plan";
  for (const bool goals : {false, true}) {
    const json out = run_for_json(words + (goals ? " --goals" : ""));
    const json& row = row_of(out.at("sections").at(1), "ratio_of", "bare plan / dp x1");
    CHECK(row.at("ratio") > 0);
    CHECK(row.contains("goal") == goals);
    CHECK(row.contains("met") == goals);
  }
}

TEST_CASE("step --inference measures evaluations of one and of several replicas") {
  const json out =
      run_for_json("step --cpu 2 --model mlp -b 8 --batches 2 --rounds 2 --steps 2 --warmup 1 --inference");
  const json& section = out.at("sections").at(0);
  CHECK(section.at("title") == "Evaluations");
  CHECK_THAT(out.at("title").get<std::string>(), Catch::Contains("evaluation"));
  CHECK(section.at("rows").size() == 5);  // dp1, dp, and three of PyTorch
  for (const char* key : {"dp1", "dp"}) CHECK(row_of(section, "key", key).at("kind") == "measured");
  CHECK(row_of(out.at("sections").at(1), "ratio_of", "dp x1 / dp x2").at("ratio") > 0);
  CHECK_THAT(run_bench("step --inference --variants plan").text, Catch::Contains("choose from dp1, dp, torch"));
}

TEST_CASE("step: progress names every variant at its start and every round with its times") {
  const BenchOutcome outcome =
      run_bench("step --cpu 2 --model mlp -b 8 --batches 2 --rounds 2 --steps 1 --warmup 1 --variants dp1,plan");
  INFO(outcome.text);
  CHECK(outcome.code == 0);
  for (const char* line :
       {"starting bare plan", "starting dp x1", "round 1 of 2, ms/step: ", "round 2 of 2, ms/step: "})
    CHECK(outcome.text.find(line) != std::string::npos);
}

TEST_CASE("step: every variant of dp runs in two rounds and writes a page, and missing PyTorch is reported") {
#if defined(__SANITIZE_THREAD__)
  DP_SKIP("OpenMP is not instrumented, and one replica of two threads has a team");
#endif
  const TemporaryFolder folder;
  const json out =
      run_for_json("step --cpu 2 -b 8 --batches 2 --rounds 2 --steps 2 --warmup 1 --python /no/python --html " +
                   (folder / "out.html"));
  const json& rows = out.at("sections").at(0).at("rows");
  CHECK(rows.size() == 11);
  for (const char* key : {"plan", "dp1", "dp-sharded", "dp-master", "dp-allreduce", "ddp"}) {
    const json& row = row_of(out.at("sections").at(0), "key", key);
    INFO(row.dump());
    CHECK(row.at("kind") == "measured");
    CHECK(row.at("samples").size() == 2);
    CHECK(row.at("ms_per_step") > 0);
    CHECK(row.at("images_per_second").get<double>() == Approx(8e3 / row.at("ms_per_step").get<double>()));
    CHECK(row.at("mib_per_device") > 1);
  }
  CHECK(row_of(out.at("sections").at(0), "key", "dp-master").at("mb_sent").get<double>() == Approx(2 * 4 * 1.199882));
  const json& missing = row_of(out.at("sections").at(0), "key", "torch");
  CHECK(missing.at("kind") == "not run");
  CHECK_THAT(missing.at("note").get<std::string>(), Catch::Contains("python ended"));
  CHECK_THAT(out.at("facts").at("versions").get<std::string>(), Catch::Contains("oneDNN"));
  CHECK(read_text(folder / "out.html").find("dp x2 sharded") != std::string::npos);
  CHECK(out.at("facts").at("command").get<std::string>().starts_with("dp_bench step --cpu 2 -b 8"));
}

TEST_CASE("ops: both kinds of layer have times, floors and a sum") {
  const TemporaryFolder folder;
  const json out = run_for_json("ops --cpu -b 4 --rounds 2 --steps 1 --threads 1 --without-pytorch --markdown " +
                                (folder / "ops.md"));
  // A time has three decimals. A share of a step has two.
  CHECK(std::regex_search(read_text(folder / "ops.md"),
                          std::regex(R"(fc2 linear_forward.* GFLOP/s \| \d+\.\d{3} \| \d+\.\d\d \|)")));
  const json& section = out.at("sections").at(1);
  const json& convolution = row_of(section, "op", "conv2 conv2d_forward (32x26x26 -> 64, 3x3/1)");
  CHECK(convolution.at("ms") > 0);
  // 2 FLOP * 64 channels of 24x24 * 32 input channels * 3x3, for each of four images
  CHECK(convolution.at("rate").get<double>() * convolution.at("ms").get<double>() * 1e6 ==
        Approx(4 * 2.0 * 64 * 576 * 288));
  CHECK(convolution.at("floor_ms") > 0);
  CHECK(row_of(section, "op", "fc1+relu linear_backward_data (9216 -> 128)").at("unit") == "GFLOP/s");
  CHECK(row_of(out.at("sections").at(0), "op", "all").at("step_ms") > convolution.at("ms"));
  CHECK(out.at("facts").at("PyTorch") == "skipped by --without-pytorch");
  CHECK(out.at("sections").at(0).at("rows").size() == 1);  // none of what PyTorch measured
}

TEST_CASE("comm: every collective between threads and between processes is correct and has bandwidths") {
  const json out =
      run_for_json("comm --cpu 2 -b 8 -e 64K -f 8192 --rounds 2 --seconds 0.001 --communicators host,host-processes");
  REQUIRE(out.at("sections").size() == 2);
  for (const json& section : out.at("sections")) {
    INFO(section.dump());
    CHECK(section.at("rows").size() == 8 * 2);
    for (const json& row : section.at("rows")) {
      CHECK(row.at("kind") == "measured");
      CHECK(row.at("wrong") == 0);
      CHECK(row.at("size").get<double>() == 4 * row.at("count").get<double>());
      CHECK(row.at("algbw").get<double>() ==
            Approx(row.at("size").get<double>() / row.at("time").get<double>() * 1e-3));
    }
    const json& gather = row_of(section, "collective", "gather");
    CHECK(gather.at("busbw").get<double>() == Approx(gather.at("algbw").get<double>() / 2));
  }
}

TEST_CASE("scaling: rows of this machine are measured") {
  const json out = run_for_json("scaling --cpu 2 -b 8 --batches 2 --rounds 2 --steps 1 --warmup 1");
  REQUIRE(out.at("sections").size() == 1);
  const json& section = out.at("sections").at(0);
  CHECK(section.at("key") == "measured");
  CHECK(section.at("rows").size() == 3);
  CHECK(section.at("rows").at(0).at("speed_up") == 1);
  for (const json& row : section.at("rows")) CHECK(row.at("kind") == "measured");
}
