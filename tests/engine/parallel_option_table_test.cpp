// The rows of the engine's options: every value, its text, and the limits.
#include "engine/step/parallel_option_table.h"

#include <functional>
#include <sstream>

#include "dp/error.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace dp;
using dp::test::refusal_of;

namespace {

using Options = DataParallelOptions;

void set(Options& options, const std::string& name, const OptionValue& value) {
  const auto& table = parallel_option_table();
  table.set(*table.find(name), options, value);
}

OptionValue get(const Options& options, const std::string& name) { return parallel_option_table().get(name, options); }

OptionValue text(const char* value) { return std::string(value); }

// Each name selects the enumerator with its number.
template <typename Enum>
void check_names(Options options, const std::string& name, const std::vector<const char*>& names, auto&& field) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO("--" << name << " " << names[i]);
    set(options, name, text(names[i]));
    CHECK(field(options) == static_cast<Enum>(i));
    CHECK(get(options, name) == text(names[i]));
  }
}

Options two_stages() {
  Options options;
  options.pipeline.stages = 2;
  return options;
}

}  // namespace

TEST_CASE("parallel options: every name selects its value") {
  const Options plain;
  check_names<Reduce>(plain, "reduce", {"auto", "master", "allreduce", "sharded"}, [](auto& o) { return o.reduce; });
  check_names<Comm>(plain, "comm", {"auto", "host", "p2p", "nccl", "mpi"}, [](auto& o) { return o.comm; });
  check_names<LossAt>(plain, "loss", {"local", "gathered"}, [](auto& o) { return o.loss; });
  check_names<OnNonfinite>(plain, "on-nonfinite", {"abort", "skip"}, [](auto& o) { return o.on_nonfinite; });
  check_names<Graphs>(plain, "graphs", {"auto", "always", "never"}, [](auto& o) { return o.graphs; });
  check_names<BatchNormMode>(plain, "bn", {"master", "pooled", "sync"}, [](auto& o) { return o.batch_norm; });
  check_names<FoldNorms>(plain, "fold-bn", {"auto", "always", "never"}, [](auto& o) { return o.fold_norms; });
  check_names<PipelineSchedule>(two_stages(), "schedule", {"none", "gpipe", "1f1b", "zb-h1"},
                                [](auto& o) { return o.pipeline.schedule; });
  check_names<Recompute>(two_stages(), "recompute", {"none", "stage", "except-last"},
                         [](auto& o) { return o.pipeline.recompute; });
  Options options;
  for (const auto& [name, type] : {std::pair("bfloat16", DType::bf16), std::pair("float32", DType::f32)}) {
    set(options, "reduce-dtype", text(name));
    CHECK(options.reduce_dtype == type);
    CHECK(get(options, "reduce-dtype") == text(name));
  }
}

TEST_CASE("parallel options: flags turn members on and off") {
  Options options;
  for (const bool on : {true, false}) {
    for (const char* const name :
         {"no-autotune", "no-dropout", "deterministic", "tf32", "exact-conv", "check-replicas"}) {
      set(options, name, on);
      CHECK(get(options, name) == OptionValue(on));
    }
    CHECK(options.autotune != on);
    CHECK(options.dropout != on);
    CHECK(options.deterministic == on);
    CHECK(options.tf32 == on);
    CHECK(options.exact_convolutions == on);
    CHECK(options.check_replicas == on);
  }
}

TEST_CASE("parallel options: mixed precision and the moving average have a default, and an option of their own") {
  Options options;
  CHECK(get(options, "amp") == OptionValue(false));
  CHECK(get(options, "amp-dtype") == OptionValue{});
  CHECK(refusal_of([&] { set(options, "amp-dtype", text("float16")); }) == "--amp-dtype requires --amp");
  set(options, "amp", true);
  CHECK(options.amp == Amp::bfloat16);
  CHECK(get(options, "amp-dtype") == text("bfloat16"));
  set(options, "amp-dtype", text("float16"));
  CHECK(options.amp == Amp::float16);
  CHECK(get(options, "amp") == OptionValue(true));
  CHECK(get(options, "amp-dtype") == text("float16"));
  set(options, "amp-dtype", text("bfloat16"));
  CHECK(options.amp == Amp::bfloat16);
  set(options, "amp", false);
  CHECK(options.amp == Amp::off);

  CHECK(get(options, "model-ema") == OptionValue(false));
  CHECK(get(options, "model-ema-decay") == OptionValue{});
  CHECK(refusal_of([&] { set(options, "model-ema-decay", 0.5); }) == "--model-ema-decay requires --model-ema");
  set(options, "model-ema", true);
  CHECK(options.ema_decay == 0.9998);
  set(options, "model-ema-decay", 0.5);
  CHECK(options.ema_decay == 0.5);
  CHECK(get(options, "model-ema") == OptionValue(true));
  set(options, "model-ema", false);
  CHECK(options.ema_decay == std::nullopt);
}

TEST_CASE("parallel options: a bucket's size in MiB is rounded up to whole bytes") {
  Options options;
  CHECK(get(options, "bucket-mb") == OptionValue{});
  for (const auto& [mebibytes, bytes] : {std::pair(1.0, 1048576), std::pair(0.0625, 65536), std::pair(1e-6, 2)}) {
    set(options, "bucket-mb", mebibytes);
    CHECK(options.bucket_bytes == static_cast<std::size_t>(bytes));
  }
  options.bucket_bytes = 65536;
  CHECK(get(options, "bucket-mb") == OptionValue(0.0625));
}

TEST_CASE("parallel options: the group of frozen parameters comes first, and other groups are kept") {
  using Names = std::vector<std::string>;
  Options options;
  options.parameter_groups = {{.pattern = "x", .lr_factor = 2, .weight_decay = 0.5f}};
  CHECK(get(options, "freeze") == OptionValue{});
  CHECK(get(options, "no-decay-norm-bias") == OptionValue(false));
  const auto patterns = [&] {
    Names all;
    for (const ParameterGroup& group : options.parameter_groups) all.push_back(group.pattern);
    return all;
  };
  set(options, "no-decay-norm-bias", true);
  set(options, "no-decay-norm-bias", true);
  CHECK(patterns() == Names{"x", "*"});
  CHECK(is_no_decay(options.parameter_groups[1]));
  set(options, "freeze", Names{"a.*", "b"});
  CHECK(patterns() == Names{"a.*", "b", "x", "*"});
  CHECK(is_frozen_by_name(options.parameter_groups[0]));
  CHECK(is_frozen_by_name(options.parameter_groups[1]));
  CHECK(get(options, "freeze") == OptionValue(Names{"a.*", "b"}));
  CHECK(get(options, "no-decay-norm-bias") == OptionValue(true));
  set(options, "freeze", Names{"c"});
  CHECK(patterns() == Names{"c", "x", "*"});
  set(options, "no-decay-norm-bias", false);
  CHECK(patterns() == Names{"c", "x"});
  CHECK(options.parameter_groups[1].lr_factor == 2);
}

TEST_CASE("parallel options: learning rate factors follow frozen parameters, and combine with no decay") {
  using Names = std::vector<std::string>;
  Options options;
  options.parameter_groups = {{.pattern = "x", .vectors = true, .lr_factor = 3}};
  CHECK(get(options, "lr-factor") == OptionValue{});
  set(options, "freeze", Names{"f"});
  set(options, "lr-factor", Names{"a=b.*=0.5", "c=64"});
  const auto shown = [&] {
    Names all;
    for (const ParameterGroup& group : options.parameter_groups) {
      std::ostringstream text;
      text << group.pattern << (group.vectors ? " vectors " : " ") << group.lr_factor
           << (group.weight_decay ? " no decay" : "") << (group.frozen ? " frozen" : "");
      all.push_back(text.str());
    }
    return all;
  };
  CHECK(shown() == Names{"f 1 frozen", "a=b.* 0.5", "c 64", "x vectors 3"});
  CHECK(get(options, "lr-factor") == OptionValue(Names{"a=b.*=0.5", "c=64"}));
  for (std::size_t i = 0; i < 4; ++i) CHECK(is_of_options(options.parameter_groups, i) == (i < 3));
  set(options, "no-decay-norm-bias", true);
  const Names both{"f 1 frozen",  "a=b.* vectors 0.5 no decay", "a=b.* 0.5", "c vectors 64 no decay", "c 64",
                   "x vectors 3", "* vectors 1 no decay"};
  CHECK(shown() == both);
  for (std::size_t i = 0; i < 7; ++i) CHECK(is_of_options(options.parameter_groups, i) == (i != 5));
  set(options, "lr-factor", Names{"c=1"});
  CHECK(shown() == Names{"f 1 frozen", "c vectors 1 no decay", "c 1", "x vectors 3", "* vectors 1 no decay"});
  set(options, "no-decay-norm-bias", false);
  CHECK(shown() == Names{"f 1 frozen", "c 1", "x vectors 3"});
  set(options, "lr-factor", Names{});
  CHECK(shown() == Names{"f 1 frozen", "x vectors 3"});
  for (const char* wrong : {"a", "=2", "a=", "a=x", "a=-1", "a=inf", "a=nan", "a=2x"})
    CHECK_THROWS_WITH(set(options, "lr-factor", Names{wrong}),
                      Catch::Contains("is not PARAMETERS=FACTOR, such as 'layer1.*=0.1'"));
}

TEST_CASE("parallel options: --freeze and --no-decay-norm-bias show only the groups that they made") {
  CHECK(is_frozen_by_name({.pattern = "a", .frozen = true}));
  CHECK_FALSE(is_frozen_by_name({.pattern = "a"}));
  CHECK_FALSE(is_frozen_by_name({.pattern = "a", .vectors = true, .frozen = true}));
  CHECK(is_no_decay({.vectors = true, .weight_decay = 0.0f}));
  CHECK_FALSE(is_no_decay({.vectors = false, .weight_decay = 0.0f}));
  CHECK_FALSE(is_no_decay({.vectors = true}));
  CHECK_FALSE(is_no_decay({.vectors = true, .weight_decay = 0.1f}));
  CHECK_FALSE(is_no_decay({.pattern = "a", .vectors = true, .weight_decay = 0.0f}));
  CHECK_FALSE(is_no_decay({.vectors = true, .weight_decay = 0.0f, .frozen = true}));
}

TEST_CASE("parallel options: pipeline options require two stages") {
  Options options;
  for (const char* const name : {"micro-batches", "schedule", "pipeline-split", "recompute"}) {
    INFO(name);
    CHECK(get(options, name) == OptionValue{});
    CHECK(refusal_of([&] { set(options, name, text("auto")); }) ==
          "--" + std::string(name) + " requires --pipeline-stages 2 or more, but --pipeline-stages is 1");
  }
  set(options, "pipeline-stages", std::int64_t{2});
  CHECK(options.pipeline.stages == 2);
  CHECK(get(options, "micro-batches") == text("auto"));
  CHECK(get(options, "schedule") == text("1f1b"));
  CHECK(get(options, "pipeline-split") == text("auto"));
  CHECK(get(options, "recompute") == text("none"));
}

TEST_CASE("parallel options: micro-batches are auto or a whole number from 1 to 4096") {
  Options options = two_stages();
  for (const char* const number : {"1", "17", "4096", "auto"}) {
    set(options, "micro-batches", text(number));
    CHECK(options.pipeline.micro_batches == (std::string(number) == "auto" ? 0 : std::stoi(number)));
    CHECK(get(options, "micro-batches") == text(number));
  }
  for (const char* const bad : {"0", "-1", "4097", "3x", "1.5", "", "automatic"})
    CHECK(refusal_of([&] { set(options, "micro-batches", text(bad)); }) ==
          "--micro-batches '" + std::string(bad) + "' is neither auto nor a whole number from 1 to 4096");
}

TEST_CASE("parallel options: a split is auto, measured, or the names of cuts") {
  Options options = two_stages();
  const auto check = [&](const char* value, const std::vector<std::string>& cuts, bool measured) {
    INFO(value);
    set(options, "pipeline-split", text(value));
    CHECK(options.pipeline.cuts == cuts);
    CHECK(options.pipeline.measured == measured);
    CHECK(get(options, "pipeline-split") == text(value));
  };
  check("measured", {}, true);
  check("fc1", {"fc1"}, false);
  check("layer2.0,layer4.0,fc", {"layer2.0", "layer4.0", "fc"}, false);
  check("measured", {}, true);
  check("auto", {}, false);
}

TEST_CASE("parallel options: a member out of range is named with the range, and the limits are accepted") {
  const auto check = [](const std::function<void(Options&)>& change, const std::string& expected) {
    Options options;
    change(options);
    CHECK(refusal_of([&] { parallel_option_table().check(options); }) == expected);
  };
  const std::string accepted = "accepted", steps = "it must be a whole number from 1 to 1048576";
  check([](Options&) {}, accepted);
  check([](Options& o) { o.grad_accum_steps = 0; }, "--grad-accum-steps is 0; " + steps);
  check([](Options& o) { o.grad_accum_steps = (1 << 20) + 1; }, "--grad-accum-steps is 1048577; " + steps);
  check([](Options& o) { o.grad_accum_steps = 1 << 20; }, accepted);
  const std::string shards = "it must be a whole number from 1 to 4096";
  check([](Options& o) { o.logical_shards = -1; }, "--logical-shards is -1; " + shards);
  check([](Options& o) { o.logical_shards = 4097; }, "--logical-shards is 4097; " + shards);
  check([](Options& o) { o.logical_shards = 4096; }, accepted);
  const std::string stages = "it must be a whole number from 1 to 64";
  check([](Options& o) { o.pipeline.stages = 0; }, "--pipeline-stages is 0; " + stages);
  check([](Options& o) { o.pipeline.stages = 65; }, "--pipeline-stages is 65; " + stages);
  check([](Options& o) { o.pipeline.stages = 64; }, accepted);
  check([](Options& o) { o.threads_per_replica = 1025; },
        "--threads-per-replica is 1025; it must be a whole number from 1 to 1024");
  check([](Options& o) { o.threads_per_replica = 1024; }, accepted);
  check([](Options& o) { o.timeout_seconds = 1000000.5; },
        "--timeout is 1000000.5; it must be a number from 0 to 1000000");
  check([](Options& o) { o.timeout_seconds = 1e6; }, accepted);
  check([](Options& o) { o.timeout_seconds = 0; }, accepted);
  const std::string below_one = "it must be a number from 0 to below 1";
  check([](Options& o) { o.label_smoothing = 1.5f; }, "--label-smoothing is 1.5; " + below_one);
  check([](Options& o) { o.label_smoothing = 0.999f; }, accepted);
  check([](Options& o) { o.ema_decay = 1.5; }, "--model-ema-decay is 1.5; " + below_one);
  check([](Options& o) { o.ema_decay = 0; }, accepted);
  check([](Options& o) { o.clip_grad_norm = -1.5; },
        "--clip-grad-norm is -1.5; it must be a number greater than 0, up to 1000000000000");
  check([](Options& o) { o.clip_grad_norm = 1e12; }, accepted);
}
