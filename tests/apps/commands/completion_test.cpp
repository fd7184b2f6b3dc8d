// Scripts that complete the options in shells, and the manual page: read by the shells themselves.
#include <filesystem>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

bool installed(const std::string& program) { return std::filesystem::exists("/usr/bin/" + program); }

// What a script of this shell prints; in it "$0" (fish: $argv[1]) is dp_train.
dp::test::Outcome run_in(const std::string& shell, const std::string& script) {
  const dp::test::TemporaryFolder temp;
  return dp::test::Program({}, temp.path(), {}, {"/usr/bin/env", shell, "-c", script}).wait();
}

// What bash offers for the last of these words.
std::string offered(const std::string& words) {
  const dp::test::Outcome outcome = run_in("bash", R"(source <("$0" completion bash) || exit 1
COMP_WORDS=(dp_train )" + words + R"()
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_dp_train
echo "${COMPREPLY[@]}")");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  return outcome.out;
}

TEST_CASE("completion: bash offers options, their values, and commands") {
  CHECK(offered("--model-ema-d") == "--model-ema-decay\n");
  CHECK(offered("--optimizer sg") == "sgd\n");
  CHECK(offered("--cpu 2 --arch resn") == "resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d\n");
  CHECK(offered("--arch w") == "wide_resnet50_2\n");
  CHECK(offered("-a mnist_") == "mnist_convnet\n");
  CHECK(offered("--dataset cifar1") == "cifar10 cifar100\n");
  CHECK(offered("estim") == "estimate-memory\n");
  CHECK(offered("completion ''") == "bash zsh fish man\n");
  CHECK(offered("report --") == "--help --output\n");
  CHECK(offered("selftest --num") == "--num-gpus\n");
  CHECK(offered("fetch ''") == "mnist fashion_mnist cifar10 cifar100\n");
  CHECK(offered("--arch = mnist_") == "mnist_convnet\n");
  CHECK(offered("fetch --") == "--help --mirror --data-path --data-dir --quiet --no-progress\n");
  for (const char* line : {"--resume ''", "report ''"})
    CHECK(offered(line) == "\n");  // files, by `complete -o default`
}

TEST_CASE("completion: fish offers options, their values, and commands") {
  if (!installed("fish")) DP_SKIP("fish is not installed");
  const auto offered_by_fish = [](const std::string& line) {
    const dp::test::Outcome outcome =
        run_in("fish", "$argv[1] completion fish | source; complete -C '" + line + "' | string replace -r '\\t.*' ''");
    CHECK(outcome.err.empty());
    return outcome.out;
  };
  CHECK(offered_by_fish("dp_train --model-ema-d") == "--model-ema-decay\n");
  CHECK(offered_by_fish("dp_train --optimizer sg") == "sgd\n");
  CHECK(offered_by_fish("dp_train estim") == "estimate-memory\n");
  CHECK(offered_by_fish("dp_train fetch cifar") == "cifar10\ncifar100\n");
  CHECK(offered_by_fish("dp_train fetch --mirr") == "--mirror\n");
}

TEST_CASE("completion: zsh reads its script") {
  if (!installed("zsh")) DP_SKIP("zsh is not installed");
  const dp::test::Outcome outcome = run_in("zsh", R"("$0" completion zsh > script && zsh -n script &&
function compdef { print -r -- "$@" } && function _arguments { print -r -- "${@[(r)*--optimizer\[*]}" } &&
source ./script && _dp_train)");
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK_THAT(outcome.out, Catch::StartsWith("_dp_train dp_train\n") && Catch::Contains("(sgd adamw"));
}

TEST_CASE("completion: the manual page is formatted without a warning and has every option") {
  if (!installed("groff")) DP_SKIP("groff is not installed");
  const dp::test::Outcome page =
      run_in("bash", R"("$0" completion man > page && groff -man -Tascii -ww -P-c -P-b -P-u page)");
  CHECK(page.code == 0);
  CHECK(page.err.empty());
  for (const char* text : {"DP_TRAIN(1)", "SYNOPSIS", "--model-ema-decay", "estimate-memory", "EXIT STATUS"})
    CHECK_THAT(page.out, Catch::Contains(text));
}

TEST_CASE("completion: another shell is refused with those that there are") {
  const dp::test::TemporaryFolder temp;
  dp::test::check_bad_input({{"completion", "tcsh"}, 2, {"bash", "zsh", "fish", "man"}}, temp.path());
}

}  // namespace
