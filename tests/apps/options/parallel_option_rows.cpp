// The rows of option_rows.h for data parallelism and pipelines.
#include "apps/options/option_rows.h"
#include "support/catch.h"

namespace dp::test {
namespace {

void says_on_stderr(const Ran& run, const std::string& text) {
  CHECK_THAT(run.outcome.err, Catch::Contains("warning: ") && Catch::Contains(text));
}

}  // namespace

std::vector<OptionRow> parallel_rows() {
  const auto needs_gpus = [](const Ran&, const Ran& run) { says_on_stderr(run, "no effect on the CPU"); };
  const auto finds_the_difference = [](const Ran&, const Ran& run) {
    CHECK_THAT(run.outcome.err, Catch::Contains("weights differ after step 3"));
  };
  const auto has_no_folded_weights = [](const Ran& base, const Ran& run) {
    const auto weights = [](const Ran& of) {
      const auto parts = nlohmann::json::parse(of.text("env.json")).at("parts");
      return parts.back().at("memory").at(0).at("weights").get<std::size_t>();
    };
    CHECK(weights(base) > weights(run));
  };
  return {
      {"--cpu", {"--cpu", "1"}, {"resolved: devices = [\"cpu\"]", "resolved: reduce = \"master\""}, Weights::other},
      {"--replicas-per-device",
       {"--replicas-per-device", "2"},
       {"resolved: devices = [\"cpu\", \"cpu\", \"cpu\", \"cpu\"]"},
       Weights::other},
      {"--threads-per-replica", {"--threads-per-replica", "2"}, {"threads-per-replica = 2"}, Weights::same},
      {"--reduce", {"--reduce", "allreduce"}, {"reduce = \"allreduce\"", "-resolved: reduce"}, Weights::same},
      {"--reduce-dtype", {"--reduce-dtype", "bfloat16"}, {"reduce-dtype = \"bfloat16\""}, Weights::other},
      {"--comm",
       {"--comm", "host"},
       {"comm = \"host\"", "-resolved: comm"},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK(base.summary["communicator_reason"] != run.summary["communicator_reason"]);
         CHECK_THAT(run.summary["communicator_reason"].get<std::string>(), Catch::Contains("--comm"));
       }},
      {"--loss", {"--loss", "gathered"}, {"loss = \"gathered\""}, Weights::same},
      {"--split", {"--split", "chunk"}, {"split = \"chunk\""}, Weights::other, Setting::mlp, {"--cpu", "3"}},
      {"--split", {"--split", "3:1"}, {"split = \"3:1\""}, Weights::other},
      {"--bucket-mb", {"--bucket-mb", "0.0625"}, {"bucket-mb = 0.0625", "-resolved: bucket-mb"}, Weights::same},
      {"--bn", {"--bn", "pooled"}, {"bn = \"pooled\""}, Weights::other, Setting::batch_norm},
      {"--bn", {"--bn", "sync"}, {"bn = \"sync\""}, Weights::other, Setting::batch_norm},
      {"--fold-bn",
       {"--fold-bn", "never"},
       {"fold-bn = \"never\""},
       Weights::same,
       Setting::batch_norm,
       {},
       has_no_folded_weights},
      {"--sync-bn", {"--sync-bn"}, {"bn = \"sync\""}, Weights::other, Setting::batch_norm},
      {"--logical-shards",
       {"--logical-shards", "4"},
       {"logical-shards = 4", "resolved: deterministic = true"},
       Weights::other},
      {"--pipeline-stages",
       {"--pipeline-stages", "2"},
       {"pipeline-stages = 2", "micro-batches = \"auto\"", "schedule = \"1f1b\"", "pipeline-split = \"auto\"",
        "recompute = \"none\"", "resolved: micro-batches = \"8\"", "resolved: grad-accum-steps = 8",
        "resolved: pipeline-split = \"fc2\"", "resolved: reduce = \"master\""},
       Weights::other,
       Setting::mlp,
       {},
       [](const Ran&, const Ran& run) {
         CHECK_THAT(run.summary["pipeline"].get<std::string>(), Catch::Contains("2 stages at fc2"));
       }},
      {"--micro-batches",
       {"--micro-batches", "3"},
       {"micro-batches = \"3\"", "resolved: grad-accum-steps = 3", "-resolved: micro-batches"},
       Weights::other,
       Setting::mlp,
       {"--pipeline-stages", "2"}},
      {"--schedule",
       {"--schedule", "zb-h1"},
       {"schedule = \"zb-h1\""},
       Weights::same,
       Setting::mlp,
       {"--pipeline-stages", "2"},
       [](const Ran& base, const Ran& run) {
         CHECK_THAT(base.summary["pipeline"].get<std::string>(), Catch::Contains("1f1b"));
         CHECK_THAT(run.summary["pipeline"].get<std::string>(), Catch::Contains("zb-h1"));
       }},
      {"--recompute",
       {"--recompute", "stage"},
       {"recompute = \"stage\""},
       Weights::same,
       Setting::convnet,
       {"--pipeline-stages", "2"},
       [](const Ran& base, const Ran& run) {
         const auto activations = [](const Ran& ran) {
           return nlohmann::json::parse(ran.text("env.json"))["parts"][0]["memory"][0]["activations"].get<double>();
         };
         CHECK(activations(run) < activations(base));
       }},
      {"--pipeline-split",
       {"--pipeline-split", "fc1"},
       {"pipeline-split = \"fc1\"", "-resolved: pipeline-split"},
       Weights::same,
       Setting::convnet,
       {"--pipeline-stages", "2", "--model", "mnist_convnet"},
       [](const Ran&, const Ran& run) {
         CHECK_THAT(run.summary["pipeline"].get<std::string>(), Catch::Contains("2 stages at fc1"));
       }},
      {"--graphs", {"--graphs", "never"}, {"graphs = \"never\""}, Weights::same, Setting::mlp, {}, needs_gpus},
      {"--no-graphs", {"--no-graphs"}, {"graphs = \"never\""}, Weights::same, Setting::mlp, {}, needs_gpus},
      {"--no-autotune", {"--no-autotune"}, {"no-autotune = true"}, Weights::same, Setting::mlp, {}, needs_gpus},
      {"--exact-conv", {"--exact-conv"}, {"exact-conv = true"}, Weights::other, Setting::convnet},
      {"--amp",
       {"--amp"},
       {"amp = true", "amp-dtype = \"bfloat16\""},
       Weights::other,
       Setting::convnet,
       {},
       {},
       {"DP_EMULATE_BF16=1"}},
      {"--tf32", {"--tf32"}, {"tf32 = true"}, Weights::same, Setting::mlp, {}, needs_gpus},
      // One replica's update gets a NaN gradient and is skipped. The other replica's weights then differ.
      {"--check-replicas",
       {"--check-replicas"},
       {"check-replicas = true"},
       Weights::other,
       Setting::mlp,
       {"--reduce", "allreduce", "--on-nonfinite", "skip", "--epochs", "1"},
       finds_the_difference,
       {"DP_FAIL=nan:update:dev1:step2"},
       0,
       4},
      {"--engine",
       {"--engine", "ddp"},
       {"resolved: devices = [\"cpu\"]", "resolved: reduce = \"allreduce\""},
       Weights::other,  // a rank reads every second sample
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK(base.summary["engine"] == "dp");
         CHECK(run.summary["engine"] == "ddp");
       }},
  };
}

}  // namespace dp::test
