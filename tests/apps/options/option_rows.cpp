#include "apps/options/option_rows.h"

#include "support/catch.h"
#include "support/free_port.h"

namespace dp::test {
namespace {

using Json = nlohmann::json;

}  // namespace

std::vector<OptionRow> training_rows() {
  const auto skipped_one = [](const Ran& base, const Ran& run) {
    CHECK_THAT(base.outcome.err, Catch::Contains("not finite"));
    std::int64_t skipped = 0;
    for (const Json& line : run.metrics) skipped += line.value("skipped", 0);
    CHECK(skipped == 1);
  };
  const auto other_average = [](const Ran& base, const Ran& run) {
    CHECK(base.has("checkpoints/last/ema.safetensors"));
    CHECK(base.text("checkpoints/last/ema.safetensors") != run.text("checkpoints/last/ema.safetensors"));
  };
  const Words adamw{"--optimizer", "adamw"}, rmsprop{"--optimizer", "rmsprop"}, muon{"--optimizer", "muon"};
  const Words step{"--lr-scheduler", "step"}, multistep{"--lr-scheduler", "multistep"};
  const Words polynomial{"--lr-scheduler", "polynomial"}, onecycle{"--lr-scheduler", "onecycle"};
  return {
      {"--batch-size", {"-b", "8"}, {"batch-size = 8"}, Weights::other},
      {"--batch-size-per-gpu", {"--batch-size-per-gpu", "4"}, {"batch-size = 8"}, Weights::other},
      {"--epochs", {"--epochs", "3"}, {"epochs = 3"}, Weights::other},
      {"--max-steps", {"--max-steps", "5"}, {"max-steps = 5"}, Weights::other},
      {"--lr", {"--lr", "0.02"}, {"lr = 0.02"}, Weights::other},
      {"--momentum", {"--momentum", "0.8"}, {"momentum = 0.8"}, Weights::other},
      {"--nesterov", {"--nesterov"}, {"nesterov = true"}, Weights::other},
      {"--optimizer",
       {"--optimizer", "adamw"},
       {"optimizer = \"adamw\"", "lr = 0.001", "opt-betas = [0.9, 0.999]", "opt-eps = 1e-08", "weight-decay = 0.01",
        "-momentum", "-nesterov"},
       Weights::other},
      {"--opt-betas", {"--opt-betas", "0.8", "0.99"}, {"opt-betas = [0.8, 0.99]"}, Weights::other, Setting::mlp, adamw},
      {"--opt-eps", {"--opt-eps", "0.01"}, {"opt-eps = 0.01"}, Weights::other, Setting::mlp, adamw},
      {"--opt-alpha", {"--opt-alpha", "0.5"}, {"opt-alpha = 0.5"}, Weights::other, Setting::mlp, rmsprop},
      {"--opt-centered", {"--opt-centered"}, {"opt-centered = true"}, Weights::other, Setting::mlp, rmsprop},
      {"--opt-match-rms", {"--no-opt-match-rms"}, {"opt-match-rms = false"}, Weights::other, Setting::mlp, muon},
      {"--weight-decay", {"--weight-decay", "0.01"}, {"weight-decay = 0.01"}, Weights::other},
      {"--freeze", {"--freeze", "fc1.*"}, {"freeze = [\"fc1.*\"]"}, Weights::other},
      {"--lr-factor",
       {"--lr-factor", "fc1.*=0.5", "*.bias=2"},
       {"lr-factor = [\"fc1.*=0.5\", \"*.bias=2\"]"},
       Weights::other},
      {"--no-decay-norm-bias",
       {"--no-decay-norm-bias"},
       {"no-decay-norm-bias = true"},
       Weights::other,
       Setting::mlp,
       {"--weight-decay", "0.01"}},
      {"--lr-scale", {"--lr-scale", "linear"}, {"lr = 0.00625"}, Weights::other},  // b is 16, not 128
      {"--lr-scheduler", {"--lr-scheduler", "constant"}, {"lr-scheduler = \"constant\"", "-lr-min"}, Weights::other},
      {"--lr-step-size", {"--lr-step-size", "0.5"}, {"lr-step-size = 0.5"}, Weights::other, Setting::mlp, step},
      {"--lr-gamma", {"--lr-gamma", "0.5"}, {"lr-gamma = 0.5"}, Weights::other, Setting::mlp, step},
      {"--lr-milestones",
       {"--lr-milestones", "0.5,1"},
       {"lr-milestones = [0.5, 1.0]"},
       Weights::other,
       Setting::mlp,
       multistep},
      {"--lr-min", {"--lr-min", "0.01"}, {"lr-min = 0.01"}, Weights::other},
      {"--lr-power", {"--lr-power", "2"}, {"lr-power = 2.0"}, Weights::other, Setting::mlp, polynomial},
      {"--lr-pct-start", {"--lr-pct-start", "0.5"}, {"lr-pct-start = 0.5"}, Weights::other, Setting::mlp, onecycle},
      {"--lr-div-factor", {"--lr-div-factor", "5"}, {"lr-div-factor = 5.0"}, Weights::other, Setting::mlp, onecycle},
      {"--lr-final-div-factor",
       {"--lr-final-div-factor", "5"},
       {"lr-final-div-factor = 5.0"},
       Weights::other,
       Setting::mlp,
       onecycle},
      {"--lr-patience",
       {"--lr-patience", "0"},
       {"lr-patience = 0"},
       Weights::other,
       Setting::mlp,
       {"--lr-scheduler", "plateau", "--lr", "1e-6", "--epochs", "4"}},
      {"--lr-warmup-epochs", {"--lr-warmup-epochs", "1"}, {"lr-warmup-epochs = 1.0"}, Weights::other},
      {"--grad-accum-steps", {"--grad-accum-steps", "2"}, {"grad-accum-steps = 2"}, Weights::other},
      {"--clip-grad-norm", {"--clip-grad-norm", "0.1"}, {"clip-grad-norm = 0.1"}, Weights::other},
      {"--label-smoothing", {"--label-smoothing", "0.1"}, {"label-smoothing = 0.1"}, Weights::other},
      {"--mixup-alpha", {"--mixup-alpha", "0.5"}, {"mixup-alpha = 0.5"}, Weights::other},
      {"--cutmix-alpha", {"--cutmix-alpha", "1"}, {"cutmix-alpha = 1.0"}, Weights::other},
      {"--class-weights",
       {"--class-weights", "2,1,1,1,0.5,1,1,1,1,0"},
       {"class-weights = \"2,1,1,1,0.5,1,1,1,1,0\""},
       Weights::other},
      {"--output-loss",
       {"--output-loss", "mse"},
       {"output-loss = \"mse\"", "-huber-delta"},
       Weights::other,
       Setting::targets,
       {},
       [](const Ran&, const Ran& run) { CHECK(run.summary.at("rmse").is_number()); }},
      {"--sample-weights", {"--sample-weights"}, {"sample-weights = true"}, Weights::other, Setting::targets},
      {"--huber-delta",
       {"--huber-delta", "0.1"},
       {"huber-delta = 0.1"},
       Weights::other,
       Setting::targets,
       {"--output-loss", "huber"}},
      {"--smooth-l1-beta",
       {"--smooth-l1-beta", "0.1"},
       {"smooth-l1-beta = 0.1"},
       Weights::other,
       Setting::targets,
       {"--output-loss", "smooth_l1"}},
      {"--pos-weight",
       {"--pos-weight", "3"},
       {"pos-weight = 3.0"},
       Weights::other,
       Setting::targets,
       {"--output-loss", "bce_with_logits"},
       [](const Ran&, const Ran& run) { CHECK(run.summary.at("map").is_number()); }},
      {"--focal-alpha",
       {"--focal-alpha", "0.5"},
       {"focal-alpha = 0.5"},
       Weights::other,
       Setting::targets,
       {"--output-loss", "focal"}},
      {"--focal-gamma",
       {"--focal-gamma", "1"},
       {"focal-gamma = 1.0"},
       Weights::other,
       Setting::targets,
       {"--output-loss", "focal"}},
      {"--on-nonfinite",
       {"--on-nonfinite", "skip"},
       {"on-nonfinite = \"skip\""},
       Weights::other,
       Setting::mlp,
       {},
       skipped_one,
       {"DP_FAIL=nan:backward:dev1:step2"},
       5},
      {"--model-ema",
       {"--model-ema"},
       {"model-ema = true", "model-ema-decay = 0.9998"},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK_FALSE(base.has("checkpoints/last/ema.safetensors"));
         CHECK(run.has("checkpoints/last/ema.safetensors"));
       }},
      {"--model-ema-decay",
       {"--model-ema-decay", "0.1"},
       {"model-ema-decay = 0.1"},
       Weights::same,
       Setting::mlp,
       {"--model-ema"},
       other_average},
  };
}

std::vector<OptionRow> data_rows() {
  return {
      {"--model", {"--model", "mnist_convnet"}, {"model = \"mnist_convnet\""}, Weights::other},
      {"--dataset",
       {"--dataset", "synthetic", "--images", "64"},
       {"dataset = \"synthetic\"", "images = 64"},
       Weights::other},
      {"--data-path", {"--data-path", "@/others"}, {"data-path = \"@/others\""}, Weights::other},
      {"--input", {"--input", "1,6,5"}, {"input = \"1,6,5\""}, Weights::other, Setting::synthetic},
      {"--classes", {"--classes", "6"}, {"classes = 6"}, Weights::other, Setting::synthetic},
      {"--images", {"--images", "30"}, {"images = 30"}, Weights::other, Setting::synthetic},
      {"--bad-images", {"--bad-images", "fail"}, {"bad-images = \"fail\""}, Weights::same},
      {"--crop-pct",
       {"--crop-pct", "0.5"},
       {"crop-pct = 0.5"},
       Weights::same,
       Setting::targets,
       {},
       [](const Ran& base, const Ran& run) { CHECK(base.summary["test_loss"] != run.summary["test_loss"]); }},
      {"--val-split", {"--val-split", "0.5"}, {"val-split = 0.5"}, Weights::other},
      {"--mean", {"--mean", "0.3"}, {"mean = [0.3]"}, Weights::other},
      {"--std", {"--std", "0.5"}, {"std = [0.5]"}, Weights::other},
      {"--seed", {"--seed", "7"}, {"seed = 7"}, Weights::other},
      // On CPUs the order of reduction is fixed without the flag.
      {"--deterministic", {"--deterministic"}, {"deterministic = true"}, Weights::same},
      {"--no-augment", {"--no-augment"}, {"no-augment = true"}, Weights::other, Setting::crops},
      {"--no-shuffle", {"--no-shuffle"}, {"no-shuffle = true"}, Weights::other},
      {"--no-dropout", {"--no-dropout"}, {"no-dropout = true"}, Weights::other, Setting::convnet},
      {"--balanced-sampling", {"--balanced-sampling"}, {"balanced-sampling = true"}, Weights::other},
      {"--ra-reps", {"--ra-reps", "2"}, {"ra-reps = 2"}, Weights::other},
      {"--drop-last", {"--drop-last"}, {"drop-last = true"}, Weights::other, Setting::mlp, {"-b", "24"}},
      {"--workers", {"-j", "2"}, {"workers = 2"}, Weights::same},
      {"--images-on", {"--images-on", "device"}, {"images-on = \"device\"", "-resolved: images-on"}, Weights::same},
  };
}

std::vector<OptionRow> augmentation_rows() {
  const auto row = [](const std::string& option, const std::string& value, const std::string& line, Words also = {}) {
    Words arguments{option};
    if (!value.empty()) arguments.push_back(value);
    return OptionRow{option, arguments, {line}, Weights::other, Setting::crops, std::move(also)};
  };
  const Words ra{"--auto-augment", "ra"};
  return {
      row("--crop-padding", "2", "crop-padding = 2"),
      row("--flip", "alternating", "flip = \"alternating\""),
      row("--vflip", "", "vflip = true"),
      row("--rotation", "30", "rotation = 30.0"),
      row("--auto-augment", "ta_wide", "auto-augment = \"ta_wide\""),
      row("--ra-ops", "3", "ra-ops = 3", ra),
      row("--ra-magnitude", "20", "ra-magnitude = 20", ra),
      row("--augmix-severity", "10", "augmix-severity = 10", {"--auto-augment", "augmix"}),
      row("--color-jitter", "0.4,0.3,0.2,0.1", "color-jitter = \"0.4,0.3,0.2,0.1\""),
      row("--random-erase", "1", "random-erase = 1.0"),
      row("--interpolation", "nearest", "interpolation = \"nearest\"", {"--rotation", "30"}),
      {"--interpolation",
       {"--interpolation", "bicubic"},
       {"interpolation = \"bicubic\""},
       Weights::other,
       Setting::targets,
       {"--no-augment"},
       [](const Ran& base, const Ran& run) { CHECK(base.summary["test_loss"] != run.summary["test_loss"]); }},
  };
}

std::vector<OptionRow> run_rows() {
  const auto has_instead = [](std::set<std::int64_t> base_has, std::set<std::int64_t> run_has) {
    return [=](const Ran& base, const Ran& run) {
      for (std::int64_t step = 1; step <= 8; ++step) {
        INFO("checkpoint of step " << step);
        const std::string name = "checkpoints/step-" + std::to_string(step);
        CHECK(base.has(name) == base_has.contains(step));
        CHECK(run.has(name) == run_has.contains(step));
      }
    };
  };
  const auto traced = [](const char* file, int steps) {
    return [=](const Ran&, const Ran& run) { CHECK(Json::parse(run.text(file))["otherData"]["steps"] == steps); };
  };
  return {
      {"--output-dir",
       {"--output-dir", "@/named"},
       {},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran&, const Ran& run) {
         CHECK_THAT(run.summary["checkpoint"].get<std::string>(), Catch::Contains("/named/"));
       }},
      {"--experiment",
       {"--experiment", "trial"},
       {},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran&, const Ran& run) {
         CHECK_THAT(run.summary["checkpoint"].get<std::string>(), Catch::Contains("/trial/"));
       }},
      {"--resume",
       {"--resume", "@/seven"},
       {},
       Weights::other,
       Setting::mlp,
       {"--seed", "7", "--epochs", "3"},
       [](const Ran&, const Ran& run) {
         CHECK_THAT(run.outcome.out, Catch::Contains("resumed from") && Catch::Contains("at step 8"));
       }},
      {"--init",
       {"--init", "@/seven/checkpoints/last/model.safetensors"},
       {"init = \"@/seven/checkpoints/last/model.safetensors\"", "init-partial = false"},
       Weights::other},
      {"--init-partial",
       {"--init-partial"},
       {"init-partial = true"},
       Weights::other,
       Setting::synthetic,
       {"--init", "@/seven/checkpoints/last/model.safetensors"},
       [](const Ran&, const Ran& run) { CHECK_THAT(run.outcome.out, Catch::Contains("fc1.weight")); },
       {},
       3},
      {"--eval-every",
       {"--eval-every", "2"},
       {"eval-every = 2"},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK(base.lines("eval") == 2);
         CHECK(run.lines("eval") == 1);
       }},
      {"--no-eval",
       {"--no-eval"},
       {"eval-every = 0"},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK(base.lines("eval") == 2);
         CHECK(run.lines("eval") == 0);
         CHECK(run.summary["top1"].is_null());
         CHECK_THAT(run.outcome.out, Catch::Contains("Result: not evaluated"));
       }},
      {"--tta",
       {"--tta", "flip"},
       {"tta = \"flip\""},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) { CHECK(base.summary["test_loss"] != run.summary["test_loss"]); }},
      {"--patience",
       {"--patience", "2"},
       {"patience = 2"},
       Weights::same,
       Setting::mlp,
       {"--lr", "0", "--epochs", "5"},
       [](const Ran& base, const Ran& run) {
         CHECK(base.lines("eval") == 5);
         CHECK(run.lines("eval") == 3);
         CHECK(run.summary["interrupted"] == false);
       }},
      {"--save-every",
       {"--save-every", "2"},
       {"save-every = \"2\""},
       Weights::same,
       Setting::mlp,
       {"--checkpoint-hist", "9"},
       has_instead({4, 8}, {8})},
      {"--save-every",
       {"--save-every", "1,3steps"},
       {"save-every = \"1,3steps\""},
       Weights::same,
       Setting::mlp,
       {"--checkpoint-hist", "9"},
       has_instead({4, 8}, {3, 4, 6, 8})},
      {"--sync-checkpoints",
       {"--sync-checkpoints"},
       {"sync-checkpoints = true"},
       Weights::same,
       Setting::mlp,
       {"--checkpoint-hist", "9"},
       has_instead({4, 8}, {4, 8})},
      {"--checkpoint-hist",
       {"--checkpoint-hist", "1"},
       {"checkpoint-hist = 1"},
       Weights::same,
       Setting::mlp,
       {},
       has_instead({}, {8})},
      {"--print-freq",
       {"-p", "2"},
       {"print-freq = 2"},
       Weights::same,
       Setting::mlp,
       {"-p", "1"},
       [](const Ran& base, const Ran& run) {
         CHECK(base.lines("train") == 8);
         CHECK(run.lines("train") == 6);  // the first, third and last step of each epoch
       }},
      {"--quiet",
       {"--quiet"},
       {},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran& base, const Ran& run) {
         CHECK_THAT(base.outcome.out, Catch::Contains("Epoch:"));
         CHECK_THAT(run.outcome.out, !Catch::Contains("Epoch:") && Catch::Contains("Acc@1"));
       }},
      {"--trace",
       {"--trace", "@/out/trace.json"},
       {},
       Weights::same,
       Setting::mlp,
       {"--epochs", "4"},
       traced("../out/trace.json", 6)},
      {"--trace-steps",
       {"--trace-steps", "2:3"},
       {},
       Weights::same,
       Setting::mlp,
       {"--trace", "@/out/few.json"},
       traced("../out/few.json", 3)},
      {"--profile",
       {"--profile"},
       {},
       Weights::same,
       Setting::mlp,
       {"--epochs", "4"},
       [](const Ran& base, const Ran& run) {
         CHECK_THAT(base.outcome.out, !Catch::Contains("floor"));
         CHECK_THAT(run.outcome.out, Catch::Contains("floor"));
       }},
      {"--summary",
       {"--summary", "@/out/s.json"},
       {},
       Weights::same,
       Setting::mlp,
       {},
       [](const Ran&, const Ran& run) { CHECK(Json::parse(run.text("../out/s.json")) == run.summary); }},
  };
}

std::vector<AloneRow> alone_rows() {
  const Words tiny = setting_words(Setting::mlp);
  const Words ddp{"--engine", "ddp", "--dataset", "synthetic", "--images", "32",
                  "--model",  "mlp", "--cpu",     "1",         "--dry-run"};
  const Words two_hosts = ddp + Words{"--nnodes", "2", "--master-addr", "127.0.0.1", "--timeout", "1"};
  return {
      {"--help", {"--help"}, 0, {"Model and data:", "Exit codes"}},
      {"--version", {"--version"}, 0, {"dp_train 0"}},
      {"--list-models", {"--list-models"}, 0, {"mnist_convnet ", "resnet18 "}},
      {"--classes-from",
       tiny + Words{"--classes-from", "data", "--init", "@/seven/checkpoints/last/model.safetensors"},
       3,
       {"model.safetensors' records no class names"}},
      {"--list-datasets", {"--list-datasets"}, 0, {"mnist ", "cifar10 ", "needs no files"}},
      {"--gpus", {"--gpus", "0"}, 4, {"--gpus 0", "no usable GPU"}},
      {"--num-gpus", {"--num-gpus", "2"}, 4, {"--num-gpus 2", "no usable GPU"}},
      {"--amp-dtype", {"--amp-dtype", "float16", "--cpu", "1"}, 2, {"--amp-dtype"}},
      {"--nnodes", two_hosts + Words{"--master-port", free_port()}, 6, {"rank"}, {"DP_TOKEN=secret"}},
      {"--node-rank",
       two_hosts + Words{"--node-rank", "1", "--master-port", "1"},
       6,
       {"127.0.0.1:1:"},
       {"DP_TOKEN=secret"}},
      {"--master-port",
       two_hosts + Words{"--node-rank", "1", "--master-port", "2"},
       6,
       {"127.0.0.1:2:"},
       {"DP_TOKEN=secret"}},
      {"--master-addr", ddp + Words{"--master-addr", "203.0.113.1"}, 2, {"203.0.113.1"}},
      {"--timeout",
       tiny + Words{"--timeout", "1", "--output-dir", "@/stalled"},
       6,
       {"replica 1"},
       {"DP_FAIL=stall:forward:dev1:step1:600000ms", "DP_FAIL_GATE=gate"}},  // time counts only in the stall
      {"--max-restarts",
       tiny + Words{"--max-restarts", "1", "--sync-checkpoints", "--output-dir", "@/restarted"},
       0,
       {"the run failed: exit status 4; restart 1 of 1 in 0 s, from step 4", "at step 4, epoch 1"},
       {"DP_FAIL=throw:forward:dev0:step5:start0", "DP_RESTART_PAUSE=0"}},
      {"--elastic", tiny + Words{"--elastic"}, 2, {"--elastic requires --max-restarts"}},
      {"--on-end",
       tiny + Words{"--on-end", "echo ended: $DP_STATUS", "--output-dir", "@/ended"},
       0,
       {"ended: complete"}},
      {"--webhook", tiny + Words{"--webhook", "ftp://host/"}, 2, {"--webhook: the address must begin with http://"}},
      {"--local-rank", tiny + Words{"--local-rank", "0", "--dry-run"}, 0, {"Acc@1"}},
      {"--evaluate",
       {"-e", "--init", "@/seven/checkpoints/last/model.safetensors", "--dataset", "mnist", "--data-path", "@/digits",
        "--model", "mlp", "--cpu", "1"},
       0,
       {"Test: Acc@1"}},
      {"--dry-run", tiny + Words{"--dry-run"}, 0, {"Trained to step 1 (", "Acc@1"}},
      {"--print-plan", tiny + Words{"--print-plan"}, 0, {"fc1.weight", "plan for 8 rows, training"}},
      {"status", {"status", "@/seven"}, 0, {"ended, complete"}},
      {"report", {"report", "@/seven", "-o", "@/out/page.html"}, 0, {"out/page.html"}},
      {"convert", {"convert", "@/seven", "-o", "@/out/w.safetensors"}, 0, {"out/w.safetensors: "}},
      {"export", {"export", "@/missing", "-o", "@/out/net.onnx"}, 3, {"missing"}},
      {"fetch",
       {"fetch", "mnist", "--epochs", "2"},
       2,
       {"--epochs is not an option of fetch; dp_train fetch --help lists those"}},
      {"env", {"env"}, 0, {"dp_train "}},
      {"--image-size",
       tiny + Words{"--image-size", "64", "--dry-run"},
       2,
       {"--image-size requires --dataset imagefolder, imagelist, imagetargets or imageshards, but the data set is "}},
      {"--crop-pct",
       tiny + Words{"--crop-pct", "0.9", "--dry-run"},
       2,
       {"--crop-pct requires --dataset imagefolder, imagelist, imagetargets or imageshards, but the data set is "}},
      {"--interpolation",
       tiny + Words{"--interpolation", "nearest", "--no-augment", "--dry-run"},
       2,
       {"--interpolation has no effect with --no-augment: images of ", " are not resized; remove one of both"}},
      {"check-data", {"check-data", "--dataset", "synthetic", "--images", "60"}, 0, {"70 images read, 0 of them bad"}},
      {"check-data", {"--lr", "1", "check-data"}, 2, {"--lr has no effect on check-data"}},
      {"selftest", {"selftest", "--cpu", "2"}, 0, {"devices: cpu, cpu", "selftest: all checks passed"}},
      {"selftest", {"selftest", "--lr", "1"}, 2, {"--lr is not an option of selftest"}},
      {"selftest", {"--lr", "1", "selftest"}, 2, {"--lr has no effect on selftest"}},
      {"selftest",
       {"selftest", "--cpu", "2"},
       4,
       {"FAILED", "a gradient is not finite", "checks failed"},
       {"DP_FAIL=nan:backward:dev1:step3"}},
      {"predict", {"predict", "--lr", "1"}, 2, {"--lr is not an option of predict"}},
      {"predict",
       {"predict", "--checkpoint", "@/seven", "--cpu", "1", "--top", "3",
        DP_SOURCE "/tests/fuzz/image_corpus/png_grey"},
       0,
       {"1 of 1 images predicted", "(softmax)"}},
      {"completion", {"completion", "bash"}, 0, {"complete -o default -F _dp_train dp_train"}},
      {"estimate-memory", {"estimate-memory", "--cpu", "2"}, 0, {"largest global batch"}},
  };
}

}  // namespace dp::test
