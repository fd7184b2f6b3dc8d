// dp_bench with a residual network, and with PyTorch.
#include "bench/run_bench.h"
#include "support/catch.h"

using namespace dp::test;
using nlohmann::json;

TEST_CASE("step: a residual network is measured with both engines, and rows with AMP are measured or refused") {
  for (const char* amp : {"", " --amp"}) {
    const json out =
        run_for_json(std::string("step --model resnet18 --cpu 2 -b 2 --batches 2 --rounds 1 --steps 1 --warmup 1 "
                                 "--variants dp1,dp-sharded,ddp") +
                     amp);
    const json& rows = out.at("sections").at(0).at("rows");
    CHECK(rows.size() == 3);
    for (const json& row : rows) {
      INFO(row.dump());
      if (*amp == '\0' || row.at("kind") == "measured")
        CHECK(row.at("ms_per_step") > 0);
      else
        CHECK_THAT(row.at("note").get<std::string>(),
                   Catch::Contains("requires a processor with bfloat16 instructions"));
    }
  }
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
