// dp_bench with a residual network, and with PyTorch.
#include "bench/run_for_json.h"
#include "support/catch.h"

using namespace dp::test;
using nlohmann::json;

TEST_CASE("compare: published figures are marked as another machine's, and rows with AMP are measured or refused") {
  const json out = run_for_json("compare --cpu 2 -b 2 --batches 2 --rounds 1 --steps 1 --warmup 1");
  const json& section = out.at("sections").at(0);
  const json& dp = row_of(section, "what", "dp x2");
  CHECK(dp.at("kind") == "measured");
  CHECK(dp.at("seconds_per_epoch").get<double>() == Approx(50000.0 / 2 * dp.at("ms_per_step").get<double>() / 1e3));
  CHECK(row_of(section, "what", "ddp x2").at("kind") == "measured");
  for (const char* what : {"dp x2 + AMP", "ddp x2 + AMP"}) {
    const json& amp = row_of(section, "what", what);
    INFO(amp.dump());
    if (amp.at("kind") != "measured")
      CHECK_THAT(amp.at("note").get<std::string>(), Catch::Contains("requires a processor with bfloat16 instructions"));
  }
  const json& published = row_of(section, "what", "DataParallel x4");
  CHECK(published.at("kind") == "published");
  CHECK(published.at("seconds_per_epoch") == 20);
  CHECK(published.at("note").get<std::string>().find("another machine") != std::string::npos);
}

TEST_CASE("dp_bench and PyTorch reach the same loss from the same weights, alone, as ranks, and op by op") {
  std::string python;
  for (const char* one : {"python3", "/usr/bin/python3"})
    if (python.empty() && run_shell(std::string(one) + " -c 'import torch'").code == 0) python = one;
  if (python.empty()) DP_SKIP("no Python here has PyTorch");
  const json steps = run_for_json(
      "step --cpu 2 -b 8 --batches 2 --rounds 1 --steps 1 --warmup 1 --variants dp1,torch-cl,torch-ddp --python " +
      python);
  for (const char* key : {"torch-cl", "torch-ddp"}) {
    const json& row = row_of(steps.at("sections").at(0), "key", key);
    INFO(row.dump());
    CHECK(row.at("kind") == "measured");
  }
  const json evaluations = run_for_json(
      "step --cpu 1 -b 8 --batches 2 --rounds 1 --steps 1 --warmup 1 --inference --variants dp1,torch-cl --python " +
      python);
  CHECK(row_of(evaluations.at("sections").at(0), "key", "torch-cl").at("kind") == "measured");
  CHECK(steps.at("facts").at("versions").get<std::string>().find("torch ") != std::string::npos);
  const json ops = run_for_json("ops --cpu -b 4 --rounds 1 --steps 1 --threads 1 --python " + python);
  const json& section = ops.at("sections").at(1);
  for (const char* op :
       {"conv2 conv2d_forward (32x26x26 -> 64, 3x3/1)", "conv2 conv2d_backward_data (32x26x26 -> 64, 3x3/1)",
        "fc2 linear_backward_weights (128 -> 10)"}) {
    const json& row = row_of(section, "op", op);
    CHECK(row.at("pytorch_ms") > 0);
    CHECK(row.at("pytorch_ratio").get<double>() ==
          Approx(row.at("pytorch_ms").get<double>() / row.at("ms").get<double>()).epsilon(1e-3));
  }
}
