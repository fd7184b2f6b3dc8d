// Commands that only print: their whole output.
#include <filesystem>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

const Words kTiny{"--dataset", "synthetic", "--images", "32", "--model", "mlp", "--cpu", "1", "-b", "16"};

std::string printed(const Words& words, const TemporaryFolder& temp) {
  const Outcome outcome = run_dp_train(words, temp.path());
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  return outcome.out;
}

TEST_CASE("the lists of models and of data sets are tables") {
  const TemporaryFolder temp;
  CHECK(printed({"--list-models"}, temp) ==
        "mnist_convnet      conv 32-64, fc 128: PyTorch's MNIST example, 1.2 M parameters\n"
        "resnet18           residual, 18 layers, torchvision's names: 11.2 M parameters; 3x3 stem for images below 64 "
        "pixels\n"
        "resnet34           residual, 34 layers: 21.8 M parameters\n"
        "resnet50           residual, 50 layers, bottlenecks: 25.6 M parameters\n"
        "resnet101          residual, 101 layers, bottlenecks: 44.5 M parameters\n"
        "resnet152          residual, 152 layers, bottlenecks: 60.2 M parameters\n"
        "resnext50_32x4d    resnet50 with 32 groups of 4 channels: 25.0 M parameters\n"
        "wide_resnet50_2    resnet50 with bottlenecks of twice the width: 68.9 M parameters\n"
        "mobilenet_v2       inverted residuals of depthwise convolutions: 3.5 M parameters\n"
        "mobilenet_v3_small mobilenet with squeeze-and-excitation: 2.5 M parameters\n"
        "mobilenet_v3_large the same, deeper and wider: 5.5 M parameters\n"
        "efficientnet_b0    mobilenet with squeeze-and-excitation, stochastic depth: 5.3 M parameters\n"
        "regnet_y_400mf     bottlenecks in groups, with squeeze-and-excitation: 4.3 M parameters\n"
        "shufflenet_v2_x1_0 depthwise convolutions on half of the channels: 2.3 M parameters\n"
        "convnext_tiny      depthwise 7x7 convolutions, layer normalisation, GELU: 28.6 M parameters\n"
        "densenet121        layers that read all earlier ones of their block: 8.0 M parameters\n"
        "googlenet          inception blocks of four branches: 6.6 M parameters\n"
        "vgg11_bn           8 convolutions of 3x3 and 3 linear layers: 132.9 M parameters\n"
        "vgg13_bn           the same with 10 convolutions: 133.1 M parameters\n"
        "vgg16_bn           the same with 13 convolutions: 138.4 M parameters\n"
        "vgg19_bn           the same with 16 convolutions: 143.7 M parameters\n"
        "cifar_speed        three stages of GELU and batch normalisation, for CIFAR-10: 2.0 M parameters\n"
        "mlp                one hidden layer of 128 units; the smallest example of a model\n");
  CHECK(printed({"--list-datasets"}, temp) ==
        "data set       image          classes  epochs  network\n"
        "digits         (1, 28, 28)         10       1  mnist_convnet  drawn, needs no files\n"
        "mnist          (1, 28, 28)         10       3  mnist_convnet  \n"
        "fashion_mnist  (1, 28, 28)         10      10  mnist_convnet  \n"
        "cifar10        (3, 32, 32)         10      30  resnet18       \n"
        "cifar100       (3, 32, 32)        100      30  resnet18       \n"
        "imagefolder    (3, 224, 224)     1000      90  resnet18       a class per folder\n"
        "imagelist      (3, 224, 224)     1000      90  resnet18       CSV or JSON lines of paths and classes\n"
        "imagetargets   (3, 224, 224)        1      90  resnet18       CSV or JSON lines of paths and numbers\n"
        "imageshards    (3, 224, 224)     1000      90  resnet18       tar files of images and classes\n"
        "synthetic      (1, 28, 28)         10       1  mnist_convnet  random bytes\n");
}

TEST_CASE("a report of one run is written to its folder, a report of several runs to the current folder") {
  const TemporaryFolder temp;
  for (const char* run : {"run", "other"}) {
    printed(kTiny + Words{"--max-steps", "1", "--output-dir", run, "--quiet"}, temp);
    fs::remove(temp / (std::string(run) + "/report.html"));
  }
  CHECK(printed({"report", "run"}, temp) == "run/report.html\n");
  CHECK_THAT(read_text(temp / "run/report.html"), Catch::Contains("<html"));
  CHECK_FALSE(fs::exists(temp / "report.html"));
  CHECK(printed({"report", "run", "other"}, temp) == "report.html\n");
  CHECK_THAT(read_text(temp / "report.html"), Catch::Contains("<html"));
  CHECK_FALSE(fs::exists(temp / "other/report.html"));
  CHECK(printed({"report", "other", "-o", "page"}, temp) == "page\n");
  CHECK_FALSE(fs::exists(temp / "other/report.html"));
  check_bad_input({{"report", "run", "-o", ""}, 2, {"--output: it is empty; name a file"}}, temp.path());
}

TEST_CASE("option --version, env and config.toml have the same version") {
  const TemporaryFolder temp;
  const std::string line = printed({"--version"}, temp);
  REQUIRE(line.starts_with("dp_train "));
  const std::string version = line.substr(9, line.size() - 10);
  const std::string environment = printed({"env"}, temp);
  CHECK(environment.starts_with("dp_train    " + version + "\n"));
  CHECK(lines_of(environment).size() > 1);
  printed(kTiny + Words{"--max-steps", "1", "--output-dir", "run", "--quiet"}, temp);
  CHECK_THAT(read_text(temp / "run/config.toml"), Catch::Contains("# dp_train " + version + ", commit "));
}

TEST_CASE("option --print-plan prints the plan and nothing else") {
  const TemporaryFolder temp;
  const std::string plan = printed(kTiny + Words{"--print-plan"}, temp);
  CHECK_THAT(plan, Catch::Contains("plan for 16 rows, training") && !Catch::Contains("test images"));
  CHECK(printed(kTiny + Words{"--print-plan", "--quiet"}, temp) == plan);
}

TEST_CASE("every unknown word is refused with its own message") {
  const TemporaryFolder temp;
  const std::string hint = "; dp_train --help lists the options\n";
  const auto check = [&](const Words& words, const std::string& answer) {
    const Outcome outcome = run_dp_train(words, temp.path());
    INFO(Catch::Detail::stringify(words));
    CHECK(outcome.code == 2);
    CHECK(outcome.err == "dp_train: error: " + answer);
  };
  check({"--mirror", "x"}, "--mirror is not an option here" + hint);  // an option of fetch
  check({"--help-pge"}, "--help-pge is not an option" + hint);        // the hidden --help-page is not suggested
  check({"trian", "--frobnicate"}, "--frobnicate is not an option" + hint);
  check({"report", "--frobnicate"}, "--frobnicate is not an option" + hint);
  check({"-epochs=3"}, "-epochs is not an option; did you mean --epochs?\n");
  check({"selftest", "--cpu", "1", "--cpu", "2"}, "--cpu is given 2 times; give it once\n");
  check({"--lr", "1", "fetch", "mnist"}, "--lr has no effect on fetch; leave it out\n");
  check({"--num-gpus", "1", "--cpu", "1"}, "--num-gpus excludes --cpu" + hint);
}

TEST_CASE("arguments may be in upper case") {
  const TemporaryFolder temp;
  CHECK(printed({"completion", "FISH"}, temp) == printed({"completion", "fish"}, temp));
  CHECK_THAT(printed({"completion", "Man"}, temp), Catch::StartsWith(".TH DP_TRAIN 1 "));
  const Outcome fetched = run_dp_train({"fetch", "MNIST", "--mirror", "http://127.0.0.1:9/"}, temp.path());
  CHECK(fetched.code != 0);  // no server
  CHECK_THAT(fetched.err, !Catch::Contains("there is no address for this data set"));
}

}  // namespace
