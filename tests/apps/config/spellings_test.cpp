// Spellings of options that people bring from torchvision, timm and tutorials.
#include <tuple>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "command_line/command_line.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

std::string config_of(const Words& words) {
  const TemporaryFolder temp;
  const Outcome outcome = run_dp_train(words + Words{"--cpu", "1", "--save-config", "out.toml"}, temp.path());
  INFO(Catch::Detail::stringify(words) << outcome.err);
  REQUIRE(outcome.code == 0);
  std::string text = read_text(temp / "out.toml");
  const auto at = text.find("data-path");  // names the temporary folder
  return at == std::string::npos ? text : text.erase(at, text.find('\n', at) - at);
}

TEST_CASE("spellings of other programs mean the same as ours") {
  const std::vector<std::pair<Words, Words>> same{
      {{"--batch_size", "32"}, {"--batch-size", "32"}},
      {{"--opt", "AdamW"}, {"--optimizer", "adamw"}},
      {{"--learning_rate", "0.01"}, {"--lr", "0.01"}},
      {{"--num-epochs", "5"}, {"--epochs", "5"}},
      {{"--model", "ResNet18"}, {"--model", "resnet18"}},
      {{"--dataset", "CIFAR10"}, {"--dataset", "cifar10"}},
      {{"--opt", "adamw", "--opt-betas", "0.8,0.9"}, {"--opt", "adamw", "--opt-betas", "0.8", "0.9"}},
      {{"--wd", "0.01"}, {"--weight-decay", "0.01"}},
      {{"--sched", "constant"}, {"--lr-scheduler", "constant"}},
      {{"--sched=step", "--gamma=0.5"}, {"--lr-scheduler", "step", "--lr-gamma", "0.5"}},
      {{"--warmup_epochs", "1"}, {"--lr-warmup-epochs", "1"}},
      {{"--min-lr", "0.001"}, {"--lr-min", "0.001"}},
      {{"--clip-grad", "1"}, {"--clip-grad-norm", "1"}},
      {{"--grad-accumulation-steps", "2"}, {"--grad-accum-steps", "2"}},
      {{"--smoothing", "0.1"}, {"--label-smoothing", "0.1"}},
      {{"--mixup", "0.1"}, {"--mixup-alpha", "0.1"}},
      {{"--cutmix", "0.1"}, {"--cutmix-alpha", "0.1"}},
      {{"--dataset", "synthetic", "--num-classes", "7"}, {"--dataset", "synthetic", "--classes", "7"}},
      {{"--arch", "resnet18"}, {"--model", "resnet18"}},
      {{"--sync_bn"}, {"--bn", "sync"}},
      {{"--log-interval", "5"}, {"--print-freq", "5"}},
      {{"--local_rank=0"}, {}},
  };
  for (const auto& [theirs, ours] : same) CHECK(config_of(theirs) == config_of(ours));
}

// The page of options says TEXT … or FLOAT … for them.
TEST_CASE("options with several values take them one after another, separated by commas, or repeated") {
  for (const auto& [option, first, second] :
       {std::tuple("--freeze", "fc1.*", "fc2.bias"), {"--lr-milestones", "1", "2"}, {"--opt-betas", "0.8", "0.9"}}) {
    const Words common{"--model", "mlp", "--lr-scheduler", "multistep", "--optimizer", "adamw"};
    const std::string listed = config_of(common + Words{option, first, second});
    CHECK_THAT(listed, Catch::Contains(second));
    CHECK(config_of(common + Words{option, std::string(first) + "," + second}) == listed);
    CHECK(config_of(Words{option, first, second} + common) == listed);
    if (std::string(option) != "--opt-betas")  // it always has two values
      CHECK(config_of(common + Words{option, first, option, second}) == listed);
  }
}

TEST_CASE("a data set alone chooses a network that fits its images") {
  CHECK_THAT(config_of({"--dataset", "cifar10"}), Catch::StartsWith("model = \"resnet18\"\n"));
  CHECK_THAT(config_of({"--dataset", "mnist"}), Catch::StartsWith("model = \"mnist_convnet\"\n"));
  CHECK_THAT(config_of({"--dataset", "cifar10", "--num-classes", "10"}), Catch::StartsWith("model = \"resnet18\"\n"));
  CHECK_THAT(config_of({"--model", "resnet18"}), Catch::Contains("dataset = \"cifar10\"\n"));
}

TEST_CASE("the linear rule scales the rate by the global batch, whichever option sets it") {
  const auto has_rate = [](const Words& words, const char* rate) {
    CHECK_THAT(config_of(words + Words{"--lr-scale", "linear", "--model", "mlp"}), Catch::Contains(rate));
  };
  has_rate({}, "\nlr = 0.05\n");
  has_rate({"-b", "256"}, "\nlr = 0.1\n");
  has_rate({"--batch-size-per-gpu", "64"}, "\nlr = 0.025\n");
  has_rate({"-b", "512", "--lr", "0.01"}, "\nlr = 0.04\n");
}

TEST_CASE("an unknown option is refused with the one that was probably meant") {
  const TemporaryFolder temp;
  const auto check = [&](const Words& words, const std::string& meant) {
    check_bad_input({words, 2, {words.front().substr(0, words.front().find('=')), "did you mean " + meant + "?"}},
                    temp.path());
  };
  check({"--epoch", "3"}, "--epochs");
  check({"--momentun=0.5"}, "--momentum");
  check({"--weight-decya", "0.1"}, "--weight-decay");
  check({"--max-epochs", "3"}, "--epochs");
  check({"--ema"}, "--model-ema");
  check({"--use-amp"}, "--amp");
  check({"--lr-scheduler-type", "step"}, "--lr-scheduler");
  check({"-epochs", "3"}, "--epochs");
  check({"--bs", "8"}, "--batch-size");
  check({"--lr-decay", "0.1"}, "--lr-gamma");
  check({"--devices", "2"}, "--gpus or --cpu");
}

TEST_CASE("only a name close to the word is suggested") {
  using command_line::closest;
  const Words names{"--lr", "--lr-min", "--epochs", "--label-smoothing", "env"};
  CHECK(closest("--epcohs", names) == "--epochs");
  CHECK(closest("--label", names) == "--label-smoothing");
  CHECK(closest("--lrmin", names) == "--lr-min");
  CHECK(closest("envv", names) == "env");
  CHECK(closest("--max-epochs", names) == "--epochs");
  CHECK(closest("--smoothing", names) == "--label-smoothing");
  for (const char* other : {"--teleport", "--lr-decay", "--no-epochs", "--save-epochs", "--name"})
    CHECK(closest(other, names).empty());
  CHECK(closest("--amp", Words{"--no-amp"}).empty());
  CHECK(closest("--no-amp", Words{"--amp", "--no-augment"}).empty());
  CHECK(closest("--momentxx", Words{"--momentum"}) == "--momentum");  // a quarter of the letters
  CHECK(closest("--momenxxx", Words{"--momentum"}).empty());
  CHECK(closest("--epochxx", names).empty());
  CHECK(closest("--lx", Words{"--la", "--lb"}) == "--la");
  CHECK(closest("--num-train-epochs", names) == "--epochs");
  CHECK(closest("--ema", Words{"--check-model-ema-now", "--model-ema", "--model-ema-decay"}) == "--model-ema");
  CHECK(closest("--ema", Words{"--use-ema", "--model-ema"}) == "--use-ema");
  CHECK(command_line::suggestion("--teleport", names).empty());
}

}  // namespace
