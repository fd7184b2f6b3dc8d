// --config and --save-config.
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

const Words kRun{"--model",
                 "mlp",
                 "--dataset",
                 "synthetic",
                 "--images",
                 "64",
                 "--cpu",
                 "2",
                 "-b",
                 "16",
                 "--epochs",
                 "2",
                 "--lr",
                 "0.02",
                 "--seed",
                 "9",
                 "--deterministic",
                 "--freeze",
                 "fc2.bias",
                 "--lr-scheduler",
                 "multistep",
                 "--lr-milestones",
                 "0.5,1"};

std::string weights(const std::string& run) {
  const std::string summary = read_text(run + "/summary.json"), key = "\"weights_sha256\":";
  return summary.substr(summary.find(key), 90);
}

TEST_CASE("the config of a run repeats the run bit for bit") {
  const TemporaryFolder temp;
  REQUIRE(run_dp_train(kRun + Words{"--output-dir", "first"}, temp.path()).code == 0);
  const Words words{"--config", "first/config.toml", "--cpu", "2", "--output-dir", "second"};
  const Outcome again = run_dp_train(words, temp.path());
  INFO(again.err);
  REQUIRE(again.code == 0);
  CHECK(weights(temp / "first") == weights(temp / "second"));
  const auto options = [](const std::string& toml) { return toml.substr(toml.find("model = ")); };  // not the comments
  CHECK(options(read_text(temp / "first/config.toml")) == options(read_text(temp / "second/config.toml")));
  REQUIRE(run_dp_train(words + Words{"--seed", "10"}, temp.path()).code == 2);  // the folder holds a run
}

TEST_CASE("a saved config has the run's options and trains nothing, and the command line takes precedence") {
  const TemporaryFolder temp;
  const Outcome saved = run_dp_train(kRun + Words{"--save-config", "my.toml"}, temp.path());
  CHECK(saved.code == 0);
  CHECK_FALSE(std::filesystem::exists(temp / "runs"));
  CHECK_THAT(read_text(temp / "my.toml"), Catch::Contains("lr = 0.02\n") && Catch::Contains("[\"fc2.bias\"]"));
  REQUIRE(run_dp_train({"-c", "my.toml", "--lr", "0.03", "--save-config", "other.toml"}, temp.path()).code == 0);
  std::string expected = read_text(temp / "my.toml");
  expected.replace(expected.find("lr = 0.02"), 9, "lr = 0.03");
  CHECK(read_text(temp / "other.toml") == expected);
}

TEST_CASE("a flag that is switched off takes precedence over a config, and a config holds every seed") {
  const TemporaryFolder temp;
  write_text(temp / "ema.toml", "model = \"mlp\"\nmodel-ema = true\nmodel-ema-decay = 0.9\ngraphs = \"auto\"\n");
  const Words words{"-c", "ema.toml", "--cpu", "1", "--model-ema=false", "--seed", "18446744073709551615"};
  const Outcome saved = run_dp_train(words + Words{"--save-config", "off.toml"}, temp.path());
  INFO(saved.err);
  REQUIRE(saved.code == 0);
  CHECK(saved.err.empty());  // graphs = "auto" is no option without effect
  CHECK_THAT(read_text(temp / "off.toml"), !Catch::Contains("model-ema-decay"));
  REQUIRE(run_dp_train({"-c", "off.toml", "--cpu", "1", "--save-config", "again.toml"}, temp.path()).code == 0);
  CHECK(read_text(temp / "again.toml") == read_text(temp / "off.toml"));
}

TEST_CASE("a config writes to no place of its own choice") {
  const TemporaryFolder temp;
  for (const std::string option : {"summary", "save-config", "trace", "output-dir", "experiment"}) {
    write_text(temp / "bad.toml", option + " = \"" + (temp / "planted") + "\"\n");
    check_bad_input({{"--config", "bad.toml", "--model", "mlp", "--dataset", "synthetic", "--cpu", "1"},
                     2,
                     {"bad.toml': " + option + " does not belong in a file", "give --" + option}},
                    temp.path());
    CHECK_FALSE(std::filesystem::exists(temp / "planted"));
    CHECK_FALSE(std::filesystem::exists(temp / "runs"));
  }
}

TEST_CASE("a config that is nested deeply is refused before it is read") {
  const TemporaryFolder temp;
  const auto repeated = [](const std::string& part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  constexpr int kMany = 100'000;
  const auto check = [&](const std::string& toml, const std::string& fragment) {
    write_text(temp / "bad.toml", toml);
    check_bad_input({{"--config", "bad.toml"}, 2, {"bad.toml': line ", fragment}, toml.size()}, temp.path());
  };
  for (const std::string& toml :
       {repeated("a.", kMany) + "a = 1\n", repeated("a . ", kMany) + "a = 1\n", repeated("\"=\".", kMany) + "a = 1\n",
        repeated("'\\'.", kMany) + "a = 1\n", repeated("\"\\\"\".", kMany) + "a = 1\n",
        "[" + repeated("a.", kMany) + "a]\n", "[[" + repeated("a.", kMany) + "a]]\n",
        "[resolved]\n" + repeated("a.", kMany) + "a = 1\n", "a = {" + repeated("b.", kMany) + "b = 1}\n",
        "a = " + repeated("[", kMany), "a = " + repeated("{b = ", kMany), "a = " + repeated("[\n", kMany),
        "a = \"\"\"\"\"\"\nb = ''''''\n" + repeated("a.", kMany) + "a = 1\n",
        "a = \"\"\"x\"\"\"\"\" # \"\n" + repeated("a.", kMany) + "a = 1\n"})
    check(toml, "more than 8 levels of tables or lists");
  check("lr = \"\n" + repeated("a.", kMany) + "a = 1\n", "line 1");  // the parser stops at the open string
  write_text(temp / "long.toml", "a = \"" + repeated("x", 2 << 20) + "\"\n");
  check_bad_input({{"--config", "long.toml"}, 2, {"long.toml': has 2097159 bytes", "at most"}}, temp.path());
  write_text(
      temp / "good.toml",
      "model = \"mlp\" # a.b.c.d.e.f.g.h.i.j.k\n# [[[[[[[[[[\nfreeze = ['a.b.c.d.e.f.g.h.i.j', \"[[[[[[[[[\"]\n");
  CHECK_THAT(
      run_dp_train({"--config", "good.toml", "--dataset", "synthetic", "--cpu", "1", "--dry-run"}, temp.path()).err,
      Catch::Contains("no parameter of the model matches 'a.b.c.d.e.f.g.h.i.j'"));
}

TEST_CASE("a config that cannot be used is refused, with the line or the option") {
  const TemporaryFolder temp;
  const auto check = [&](const std::string& toml, const Words& fragments) {
    write_text(temp / "bad.toml", toml);
    check_bad_input({{"--config", "bad.toml", "--cpu", "1"}, 2, fragments + Words{"bad.toml"}}, temp.path());
  };
  check("lr = 0.1\nmomentum = \n", {"line 2"});
  check("lrr = 0.1\n", {"lrr", "did you mean lr?"});
  check("parameter-groups = [\"fc*: lr x 2\"]\n", {"parameter-groups were set by another program"});
  check("epochs = 1.5\n", {"epochs", "'1.5' is not a whole number"});
  check("nesterov = 1\n", {"nesterov", "'1' is not"});
  check("lr = 1979-05-27\n", {"lr must be a string, number"});
  check("lr = [0.1, 0.2]\n", {"lr"});
  check("opt-eps = 0.1\n", {"--opt-eps", "adamw"});
  check("seed = 1\n[training]\nlr = 0.1\n", {"[training] is a table", "move its options to the top"});
  write_text(temp / "split.toml", "split = \"3:1\"\n");  // a split that was asked for is not silently dropped
  check_bad_input({{"--config", "split.toml", "--model", "mlp", "--dataset", "synthetic", "--cpu", "3"},
                   2,
                   {"3:1 has 2 weights for 3 replicas"}},
                  temp.path());
  write_text(temp / "rate.toml", "lr = 0.1\n");
  check_bad_input(
      {{"--config", "rate.toml", "--lr-scale", "linear"}, 2, {"rate.toml", "give the unscaled rate with --lr"}},
      temp.path());
  check_bad_input({{"--config", "none.toml"}, 2, {"none.toml", "not a file"}}, temp.path());
  check_bad_input({{"--config", "."}, 2, {"not a file"}}, temp.path());
}

}  // namespace
