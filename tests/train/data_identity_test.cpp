// A run that continues with other classes or other images: refused, matched, or announced.
#include "engine/train/data_identity.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::kTinyBatches;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;

using ClassNames = std::vector<std::string>;

const ClassNames kDigitNames{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};

// Digits with class names, of which the first `size` images are used.
class NamedDigits final : public Dataset {
 public:
  NamedDigits(std::shared_ptr<const Dataset> of, ClassNames names, std::int64_t size, std::string version)
      : of_(std::move(of)), names_(std::move(names)), size_(size), version_(std::move(version)) {}
  std::int64_t size() const override { return size_; }
  Shape image_shape() const override { return of_->image_shape(); }
  std::int64_t classes() const override { return of_->classes(); }
  ClassNames class_names() const override { return names_; }
  const Normalization& normalization() const override { return of_->normalization(); }
  std::int32_t label(std::int64_t index) const override { return of_->label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    of_->read(index, out, random);
  }
  std::string sample_id(std::int64_t index) const override { return std::to_string(index) + version_; }

 private:
  std::shared_ptr<const Dataset> of_;
  ClassNames names_;
  std::int64_t size_;
  std::string version_;
};

DatasetPair named(const ClassNames& names, std::int64_t train = 300, const std::string& version = "") {
  return {std::make_shared<NamedDigits>(tiny_digits().train, names, train, version),
          std::make_shared<NamedDigits>(tiny_digits().test, names, 130, "")};
}

ClassNames changed(ClassNames names, const std::function<void(ClassNames&)>& change) {
  change(names);
  return names;
}

const ClassNames kSwapped = changed(kDigitNames, [](ClassNames& n) { std::swap(n[3], n[8]); });
const ClassNames kRenamed = changed(kDigitNames, [](ClassNames& n) { n[0] = "naught"; });
// "one" was renamed to "unit": sorted folders would have moved.
const ClassNames kMoved = changed(kDigitNames, [](ClassNames& n) { n.erase(n.begin() + 1), n.push_back("unit"); });

struct Said {
  RunSummary summary;
  std::string text;
};

Said run(const DatasetPair& data, const TrainerOptions& options, bool evaluates = false, std::int64_t stop_after = 0) {
  Said said;
  std::atomic<int> stop{0};
  TrainerOptions stoppable = options;
  stoppable.stop = &stop;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said.text += text + "\n"; };
  callbacks.on_step = [&](const StepReport& report) { stop = report.step == stop_after ? 2 : stop.load(); };
  Trainer trainer(tiny_model(), data, stoppable);
  said.summary = evaluates ? trainer.evaluate(callbacks) : trainer.run(callbacks);
  return said;
}

TrainerOptions resumed(const std::string& from, int stages = 1) {
  TrainerOptions options = tiny_options();
  options.resume = from;
  options.parallel.pipeline.stages = stages;
  options.parallel.deterministic = stages == 1;
  return options;
}

TEST_CASE("other class names than those of the checkpoint are refused with both lists, in every layout") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp / "run"), false, 3);
  const std::string before = "'zero', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine'";
  for (const int stages : {1, 2})
    for (const bool evaluates : {false, true}) {
      const auto refused = [&](const ClassNames& names, const std::string& remedy) {
        expect_error(ErrorCode::data,
                     {"checkpoint '" + temp / "run/checkpoints/last" + "' has the classes " + before +
                          ", but the data set has 'zero', ",
                      remedy},
                     [&] { run(named(names), resumed(temp / "run", stages), evaluates); });
      };
      refused(kSwapped, "; name the classes as before, or match them by name with --classes-from data");
      refused(
          kMoved,
          "; name the classes as before, or train a new classifier: --init FILE --init-partial, without --resume and "
          "--classes-from");
    }
  expect_error(ErrorCode::data, {"'naught'", "or, if they were only renamed, use --classes-from position"},
               [&] { run(named(kRenamed), resumed(temp / "run")); });
  CHECK(run(named(kDigitNames), resumed(temp / "run")).text.find("not those of the checkpoint") == std::string::npos);
}

TEST_CASE("weights of a checkpoint record their classes, and --init compares them") {
  const TemporaryFolder temp;
  TrainerOptions trained = tiny_options(temp / "run");
  trained.parallel.ema_decay = 0.9;
  run(named(kDigitNames), trained, false, 3);
  for (const char* file : {"model", "ema"}) {
    TrainerOptions options = tiny_options();
    options.init = temp / "run/checkpoints/last/" + file + ".safetensors";
    for (const bool evaluates : {false, true}) {
      expect_error(ErrorCode::data, {options.init, "has the classes 'zero'", "--classes-from data"},
                   [&] { run(named(kSwapped), options, evaluates); });
      CHECK(run(named(kDigitNames), options, evaluates).text.empty());
    }
    CHECK(recorded_classes(options) == kDigitNames);
    options.init_partial = true;  // the classifier keeps its initial values
    const Said partial = run(named(kMoved), options, true);
    CHECK_THAT(partial.text, Catch::StartsWith("the classifier is not loaded: '" + options.init + "' has the classes"));
    CHECK(partial.text.find("--init-partial") == std::string::npos);  // advice that was followed
    Trainer untrained(tiny_model(), named(kMoved), tiny_options());
    CHECK(partial.summary.weights_sha256 != weights_sha256(untrained.net().weights()));
    CHECK(run(named(kDigitNames), options, true).summary.weights_sha256 != partial.summary.weights_sha256);
  }
}

TEST_CASE("classes matched by name give the results of the data set with the checkpoint's order") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp / "run"), false, 3);
  const auto classes = recorded_classes(resumed(temp / "run"));
  REQUIRE(classes == kDigitNames);
  const ClassNames sorted = changed(kDigitNames, [](ClassNames& n) { std::ranges::sort(n); });
  // The same images with labels by the sorted names.
  const DatasetPair as_sorted = with_classes(named(kDigitNames), sorted), matched = with_classes(as_sorted, *classes);
  const RunSummary wanted = run(named(kDigitNames), resumed(temp / "run"), true).summary;
  const Said got = run(matched, resumed(temp / "run"), true);
  CHECK(got.text.empty());
  CHECK(got.summary.test_loss == wanted.test_loss);
  CHECK(run(matched, resumed(temp / "run")).summary.weights_sha256 ==
        run(named(kDigitNames), resumed(temp / "run")).summary.weights_sha256);
}

TEST_CASE("renamed classes are taken by position on request, unless a name has moved") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp / "run"), false, 3);
  TrainerOptions options = resumed(temp / "run");
  options.classes_by_position = true;
  const Said renamed = run(named(kRenamed), options, true);
  CHECK_THAT(renamed.text, Catch::Contains("class i of the data set uses output i"));
  CHECK(renamed.summary.test_loss == run(named(kDigitNames), resumed(temp / "run"), true).summary.test_loss);
  for (const ClassNames& moved : {kMoved, kSwapped})
    expect_error(ErrorCode::data, {"name the classes as before"}, [&] { run(named(moved), options, true); });
}

TEST_CASE("a checkpoint without class names, or a data set without, is announced and continues") {
  const TemporaryFolder temp;
  run(named({}), tiny_options(temp / "unnamed"), false, 3);
  run(named(kDigitNames), tiny_options(temp / "run"), false, 3);
  CHECK_THAT(run(named(kDigitNames), resumed(temp / "unnamed")).text, Catch::Contains("records no class names"));
  CHECK_THAT(run(named({}), resumed(temp / "run")).text, Catch::Contains("but the data set has none"));
  const std::string last = temp / "run/checkpoints/last";
  Checkpoint older = load_checkpoint(last);
  older.state.data.reset();
  save_checkpoint(last, older);
  CHECK_THAT(run(named(kDigitNames), resumed(last)).text,
             Catch::Contains("checkpoint '" + last + "' records no class names: they are not compared"));
  CHECK(run(tiny_digits(), resumed(last)).text.find("class") == std::string::npos);
}

TEST_CASE("changed images are announced, inside an epoch with what that means for its order") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp / "inside"), false, 3);
  run(named(kDigitNames), tiny_options(temp / "end"), false, kTinyBatches);
  const std::string twice = "some images are read twice and others never";
  const Said fewer = run(named(kDigitNames, 299), resumed(temp / "inside"));
  CHECK_THAT(fewer.text, Catch::Contains("the training images are not those of the checkpoint (299, not 300); ") &&
                             Catch::Contains(twice));
  CHECK_THAT(run(named(kDigitNames, 300, "new size"), resumed(temp / "inside")).text,
             Catch::Contains("the training images are not those of the checkpoint; ") && Catch::Contains(twice));
  const std::string at_end = run(named(kDigitNames, 299), resumed(temp / "end")).text;
  CHECK_THAT(at_end, Catch::Contains("the training images are not those of the checkpoint (299, not 300)"));
  CHECK(at_end.find(twice) == std::string::npos);
  CHECK(run(named(kDigitNames, 299), resumed(temp / "inside"), true).text.empty());  // an evaluation reads none of them
}

TEST_CASE("other test images are announced in a resumed run and in an evaluation") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp.path()), false, 3);
  const auto with_test = [](std::int64_t size, const std::string& version) {
    DatasetPair data = named(kDigitNames);
    data.test = std::make_shared<NamedDigits>(tiny_digits().test, kDigitNames, size, version);
    return data;
  };
  const std::string what = "the test images are not those of the checkpoint", why = "; results cannot be compared with";
  CHECK_THAT(run(with_test(129, ""), resumed(temp.path()), true).text, Catch::Contains(what + " (129, not 130)" + why));
  CHECK_THAT(run(with_test(130, "new"), resumed(temp.path())).text, Catch::Contains(what + why));
}

TEST_CASE("names, counts and fingerprints stand in the checkpoint, config.toml and env.json") {
  const TemporaryFolder temp;
  run(named(kDigitNames), tiny_options(temp.path()), false, 3);
  const std::optional<DataIdentity> data = load_checkpoint(temp / "checkpoints/last").state.data;
  REQUIRE(data.has_value());
  CHECK(data->classes == kDigitNames);
  CHECK(data->train_counts.size() == 10);
  CHECK(std::accumulate(data->train_counts.begin(), data->train_counts.end(), std::int64_t{0}) == 300);
  CHECK(std::accumulate(data->test_counts.begin(), data->test_counts.end(), std::int64_t{0}) == 130);
  CHECK(data->train_fingerprint.size() == 64);
  CHECK(data->train_fingerprint != data->test_fingerprint);
  const std::string config = read_text(temp / "config.toml");
  CHECK_THAT(config, Catch::Contains("\n[data]\nclasses = [\"zero\", \"one\"") &&
                         Catch::Contains("train_fingerprint = \"" + data->train_fingerprint + "\""));
  const auto env = nlohmann::json::parse(read_text(temp / "env.json"));
  CHECK(env["parts"][0]["data"]["identity"]["classes"] == kDigitNames);
}

TEST_CASE("a fingerprint depends on names, order and ids of the samples, not on the numbers of the classes") {
  const auto of = [](const DatasetPair& data) { return identity_of(data.train.get(), *data.test).train_fingerprint; };
  const std::string whole = of(named(kDigitNames));
  CHECK(whole == of(named(kDigitNames)));
  CHECK(whole == of(with_classes(named(kDigitNames), changed(kSwapped, [](ClassNames& n) { n.push_back("ten"); }))));
  CHECK(whole != of(named(kDigitNames, 299)));
  CHECK(whole != of(named(kDigitNames, 300, "x")));
  CHECK(whole != of(named(kSwapped)));
  CHECK(whole != of(tiny_digits()));
  const DatasetPair large = datasets::digits(10000, 1);  // several pieces
  CHECK(of(large) == of(datasets::digits(10000, 1)));
  CHECK(of(large) != of(datasets::digits(9999, 1)));
}

TEST_CASE("the option --classes-from position is refused with the name that moved") {
  const auto refused = [](const std::string& text, ClassNames had, ClassNames now) {
    expect_error(ErrorCode::data, {text}, [&] { require_same_classes("w", had, now, /*by_position=*/true, {}); });
  };
  refused(
      "; --classes-from position cannot be used: 'cow' was class 1 and is now class 0; name the classes as "
      "before, or train a new classifier",
      {"bee", "cow", "dog"}, {"cow", "dog", "wasp"});
  refused("cannot be used: there are 2 classes, not 3; ", {"bee", "cow", "dog"}, {"cow", "wasp"});
}

TEST_CASE("of long lists of classes only the difference is shown") {
  ClassNames had;
  for (int i = 0; i < 1000; ++i) had.push_back("c" + std::to_string(10000 + i));
  const auto said = [&](const ClassNames& now) {
    try {
      require_same_classes("w", had, now, false, {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(said(had).empty());
  CHECK_THAT(said(changed(had, [](ClassNames& n) { n[5] = "new\n"; })),
             Catch::StartsWith("w has 1000 classes, and the data set 1000, without 'c10005', but with 'new\\x0a'; "));
  CHECK_THAT(said(changed(had, [](ClassNames& n) { n.resize(900); })),
             Catch::Contains("the data set 900, without 'c10900', ") && Catch::Contains(" and 88 more; "));
  CHECK_THAT(said(changed(had, [](ClassNames& n) { std::swap(n[7], n[8]); })),
             Catch::Contains(" in another order: class 7 is 'c10007', in the data set 'c10008'; "));
}

TEST_CASE("names that differ only in how an accent is stored do not look the same in a message") {
  const auto refused = [](const std::string& text, ClassNames had, ClassNames now) {
    expect_error(ErrorCode::data, {text}, [&] { require_same_classes("w", had, now, false, {}); });
  };
  refused("has the classes 'caf\u00e9', but the data set has 'cafe\\xcc\\x81'", {"caf\u00e9"}, {"cafe\u0301"});
  ClassNames many;
  for (int i = 0; i < 20; ++i) many.push_back("c" + std::to_string(10 + i));
  refused("without 'a\\xcd\\xaf', but with 'a\u0370'", changed(many, [](ClassNames& n) { n[3] = "a\u036f"; }),
          changed(many, [](ClassNames& n) { n[3] = "a\u0370"; }));
}

TEST_CASE("names of a data set that are too few, or other ones for its test set, are refused") {
  const auto make = [](const DatasetPair& data) { Trainer(tiny_model(), data, tiny_options()); };
  expect_error(ErrorCode::usage, {"the data set has 10 classes, but names 2"}, [&] { make(named({"a", "b"})); });
  expect_error(ErrorCode::usage, {"name their classes differently"}, [&] {
    make({named(kDigitNames).train, named(kSwapped).test});
  });
  CHECK_NOTHROW(make({named(kDigitNames).train, named({}).test}));
}

TEST_CASE("names that are not UTF-8 are recorded escaped, and more than 100,000 or 4 MiB of names are not recorded") {
  const DatasetPair data = named(changed(kDigitNames, [](ClassNames& n) { n[1] = "\xff", n[2] = "\u00fc"; }));
  const ClassNames names = recorded_names(*data.train);
  CHECK(names[1] == "\\xff");
  CHECK(names[2] == "\u00fc");
  CHECK(recorded_names(*named(changed(kDigitNames, [](ClassNames& n) { n[0].resize(5 << 20, 'x'); })).train).empty());
}

TEST_CASE("other weights of samples are other images") {
  class Weighted final : public Dataset {
   public:
    explicit Weighted(float weight) : weight_(weight) {}
    std::int64_t size() const override { return of_->size(); }
    Shape image_shape() const override { return of_->image_shape(); }
    std::int64_t classes() const override { return of_->classes(); }
    const Normalization& normalization() const override { return of_->normalization(); }
    std::int32_t label(std::int64_t index) const override { return of_->label(index); }
    bool has_weights() const override { return true; }
    float weight(std::int64_t index) const override { return index == 7 ? weight_ : 1; }
    void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
      of_->read(index, out, random);
    }

   private:
    std::shared_ptr<const Dataset> of_ = tiny_digits().train;
    float weight_;
  };
  const Dataset& test = *tiny_digits().test;
  const DataIdentity had = identity_of(std::make_shared<Weighted>(2.0f).get(), test);
  CHECK(changed_samples(had, identity_of(std::make_shared<Weighted>(2.0f).get(), test), false).empty());
  CHECK_FALSE(changed_samples(had, identity_of(std::make_shared<Weighted>(3.0f).get(), test), false).empty());
}

}  // namespace
