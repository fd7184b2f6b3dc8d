// predictions.json: its counts and images, compared with those of the model itself.
#include "engine/train/report/predictions.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/formats/rgb_image.h"
#include "engine/base/text.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/report/page_data.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
using dp::test::page_data;
using dp::test::read_text;
using dp::test::TemporaryFolder;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;
using dp::test::tiny_run;
using dp::test::write_text;

std::vector<std::uint8_t> decoded(const std::string& base64_text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : base64_text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    if ((count += 6) >= 8) bytes.push_back(static_cast<std::uint8_t>(bits >> (count -= 8)));
  }
  return bytes;
}

RgbImage image_of(const std::vector<std::uint8_t>& png) {
  RgbImage image;
  decode_png("an image of the page", png, image);
  return image;
}

// What one replica with these weights predicts for the test images, by predict().
Predictions direct(const std::vector<std::pair<std::string, Tensor>>& weights) {
  DataParallelOptions options;
  options.devices = cpus(1);
  options.threads_per_replica = 1;
  options.deterministic = true;
  DataParallel net(tiny_model(), options);
  net.set_weights(weights);
  const Dataset& test = *tiny_digits().test;
  Loader loader(tiny_digits().test, {.batch_size = test.size(), .shuffle = false});
  loader.start(0);
  const Batch* batch = loader.next();
  EvaluatedLogits all;
  all.logits = net.predict(batch->images).clone();
  for (std::int64_t i = 0; i < test.size(); ++i) all.samples.push_back(i), all.labels.push_back(test.label(i));
  return predictions_of(all, 10);
}

void check_equal(const Predictions& found, const Predictions& wanted) {
  CHECK(found.samples == wanted.samples);
  CHECK(found.counts == wanted.counts);
  REQUIRE(found.wrong.size() == wanted.wrong.size());
  for (std::size_t i = 0; i < found.wrong.size(); ++i) {
    CHECK(found.wrong[i].index == wanted.wrong[i].index);
    CHECK(found.wrong[i].truth == wanted.wrong[i].truth);
    CHECK(found.wrong[i].predicted == wanted.wrong[i].predicted);
    CHECK(found.wrong[i].probability == Approx(wanted.wrong[i].probability).epsilon(1e-5));
  }
}

struct RecordedPredictions {
  Predictions predictions;
  std::vector<std::string> images;  // PNG in base64, of each entry of predictions.wrong
};

RecordedPredictions read_predictions(const std::string& file) {
  const auto json = nlohmann::json::parse(read_text(file));
  RecordedPredictions record;
  Predictions& found = record.predictions;
  found.step = json.at("step"), found.average = json.at("average"), found.samples = json.at("samples");
  for (const auto& row : json.at("confusion"))
    for (const auto& count : row) found.counts.push_back(count);
  found.classes = static_cast<std::int64_t>(json.at("confusion").size());
  CHECK(json.at("classes").empty());
  for (const auto& one : json.at("wrong")) {
    found.wrong.push_back({one.at("index"), one.at("true"), one.at("predicted"), one.at("probability")});
    record.images.push_back(one.at("image"));
  }
  return record;
}

RecordedPredictions trained(TrainerOptions options, bool average = false) {
  const TemporaryFolder temp;
  options.output_dir = temp.path();
  Trainer trainer(tiny_model(), tiny_digits(), options);
  const RunSummary summary = trainer.run();
  const RecordedPredictions record = read_predictions(temp / "predictions.json");
  const Predictions& found = record.predictions;
  check_equal(found, direct(average ? trainer.net().average_weights() : trainer.net().weights()));
  CHECK(found.step == summary.steps);
  CHECK(found.average == average);
  std::int64_t right = 0;
  for (std::int64_t k = 0; k < 10; ++k) right += found.count(k, k);
  CHECK(100.0 * static_cast<double>(right) / 130 == Approx(summary.top1));
  options.output_dir.clear();  // storing the logits changes no weight
  CHECK(tiny_run(options).weights_sha256 == summary.weights_sha256);
  return record;
}

TEST_CASE("the counts of predictions.json are those of the weights, however the batch is split") {
  TrainerOptions options = tiny_options();
  SECTION("one replica") { options.parallel.devices = cpus(1); }
  SECTION("three replicas") { options.parallel.devices = cpus(3); }
  SECTION("two replicas with two logical shards each") { options.parallel.logical_shards = 4; }
  SECTION("parts as torch.chunk makes them, the last one smaller") {
    options.parallel.devices = cpus(3);
    options.parallel.split = Split::chunk;
  }
  SECTION("a device-resident data set") { options.images_on = ImagesOn::device; }
  SECTION("an evaluation every other epoch") { options.eval_every = 2; }
  trained(options);
}

TEST_CASE("with a moving average, predictions.json has the average's predictions") {
  TrainerOptions options = tiny_options();
  options.parallel.ema_decay = 0.8;
  trained(options, /*average=*/true);
}

TEST_CASE("the images of predictions.json are those of the test set") {
  const RecordedPredictions record = trained(tiny_options());
  REQUIRE_FALSE(record.images.empty());
  REQUIRE(record.images.size() == record.predictions.wrong.size());
  for (std::size_t i = 0; i < record.images.size(); ++i) {
    const WrongSample& wrong = record.predictions.wrong[i];
    CHECK(wrong.truth == tiny_digits().test->label(wrong.index));
    CHECK(wrong.truth != wrong.predicted);
    if (i > 0) CHECK(wrong.probability <= record.predictions.wrong[i - 1].probability);
    const RgbImage image = image_of(decoded(record.images[i]));
    REQUIRE(image.width == 28);
    REQUIRE(image.height == 28);
    const std::vector<std::uint8_t> bytes = tiny_digits().test->image(wrong.index);
    for (std::size_t at = 0; at < bytes.size(); ++at) REQUIRE(image.pixels[3 * at + 1] == bytes[at]);
  }
}

TEST_CASE("an image as PNG: colours in order, a large one reduced, another number of channels as grey") {
  const std::vector<std::uint8_t> planes{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60, 100, 110, 120, 130, 140, 150};
  const RgbImage colours = image_of(png_of({3, 2, 3}, planes));
  CHECK(colours.width == 3);
  CHECK(colours.pixels ==
        std::vector<std::uint8_t>{1, 10, 100, 2, 20, 110, 3, 30, 120, 4, 40, 130, 5, 50, 140, 6, 60, 150});
  const RgbImage grey = image_of(png_of({2, 3, 3}, planes));
  CHECK(grey.pixels[3 * 8] == 30);
  std::vector<std::uint8_t> large(161 * 90);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint8_t>(i % 161);
  const RgbImage reduced = image_of(png_of({1, 90, 161}, large));
  CHECK(reduced.width == 54);
  CHECK(reduced.height == 30);
  CHECK(reduced.pixels[0] == 1);         // of 0, 1, 2
  CHECK(reduced.pixels[3 * 53] == 160);  // the last column has two of three
  for (const std::size_t bytes : {0u, 1u, 2u, 3u, 4u, 255u}) {
    std::vector<std::uint8_t> some(bytes);
    for (std::size_t i = 0; i < bytes; ++i) some[i] = static_cast<std::uint8_t>(i * 37 + 5);
    CHECK(decoded(base64(some)) == some);
    CHECK(base64(some).size() % 4 == 0);
  }
}

// Digits with these class names.
class Named final : public Dataset {
 public:
  explicit Named(std::string name) : name_(std::move(name)) {}
  std::int64_t size() const override { return digits().size(); }
  Shape image_shape() const override { return digits().image_shape(); }
  std::int64_t classes() const override { return 10; }
  std::vector<std::string> class_names() const override { return std::vector<std::string>(10, name_); }
  const Normalization& normalization() const override { return digits().normalization(); }
  std::int32_t label(std::int64_t index) const override { return digits().label(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    digits().read(index, out, random);
  }

 private:
  static const Dataset& digits() { return *tiny_digits().test; }
  std::string name_;
};

TEST_CASE("names of classes cannot become markup of the page") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.max_steps = 1;
  const auto test = std::make_shared<Named>("\"><script>alert(1)</script>\xff<img src=x onerror=y>'");
  Trainer(tiny_model(), {tiny_digits().train, test}, options).run();
  const std::string page = read_text(temp / "report.html");
  CHECK_THAT(page, !Catch::Contains("<script>alert") && !Catch::Contains("<img"));
  CHECK(page_data(page).at("runs").at(0).at("predictions").at("classes").at(9) ==
        "\"><script>alert(1)</script>\ufffd<img src=x onerror=y>'");
}

TEST_CASE("a run with more than 100 classes has no predictions") {
  const TemporaryFolder temp;
  for (const auto& [classes, expected] : {std::pair(100, true), {101, false}}) {
    const std::string folder = temp / std::to_string(classes);
    TrainerOptions options{.epochs = 1, .batch_size = 16};
    options.parallel.devices = cpus(2);
    options.output_dir = folder;
    const DatasetPair data = datasets::synthetic({1, 6, 6}, classes, 64, 300);
    Trainer(models::mlp({.input = {1, 6, 6}, .hidden = {4}, .classes = classes}), data, options).run();
    CHECK(std::filesystem::exists(folder + "/predictions.json") == expected);
    const auto page = page_data(read_text(folder + "/report.html"));
    CHECK(page.at("runs").at(0).at("predictions").is_object() == expected);
  }
}

TEST_CASE("a run removes the predictions of an earlier one, and goes on if it cannot write its own") {
  const TemporaryFolder temp;
  write_text(temp / "predictions.json", "old");
  TrainerCallbacks callbacks;
  int said = 0;
  callbacks.on_message = [&](const std::string& text) { said += text.find("predictions.json") != std::string::npos; };
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 1) return;
    CHECK_FALSE(std::filesystem::exists(temp / "predictions.json"));
    std::filesystem::create_directories(temp / "predictions.json/taken");
  };
  CHECK(tiny_run(tiny_options(temp.path()), callbacks).steps == 21);
  CHECK(said == 2);  // the warning, and how often it occurred
  const auto data = page_data(read_text(temp / "report.html"));
  CHECK(data.at("runs").at(0).at("results").at("end") == "complete");
}

EvaluatedLogits rows_of(const std::vector<std::vector<float>>& rows, const std::vector<std::int32_t>& labels) {
  EvaluatedLogits evaluated;
  evaluated.labels = labels;
  const auto classes = static_cast<std::int64_t>(rows.front().size());
  evaluated.logits = Tensor({static_cast<std::int64_t>(rows.size()), classes});
  float* to = evaluated.logits.data<float>();
  for (const auto& row : rows) {
    evaluated.samples.push_back(static_cast<std::int64_t>(evaluated.samples.size()));
    to = std::copy(row.begin(), row.end(), to);
  }
  return evaluated;
}

TEST_CASE("predictions: ties, NaN and infinity, and the most probable errors first") {
  const float inf = INFINITY;
  const Predictions found = predictions_of(
      rows_of({{1, 1, 0}, {0, 2, 2}, {NAN, 0, 1}, {NAN, NAN, NAN}, {inf, 0, 0}, {0, 0, 3}}, {1, 2, 2, 0, 1, 0}), 3);
  CHECK(found.samples == 6);
  CHECK(found.count(1, 0) == 2);  // rows 0 and 4
  CHECK(found.count(2, 1) == 1);
  CHECK(found.count(2, 2) == 1);
  CHECK(found.count(0, 2) == 1);
  REQUIRE(found.wrong.size() == 3);  // the probability of row 4 is unknown
  CHECK(found.wrong[0].index == 5);
  CHECK(found.wrong[0].probability == Approx(1 / (1 + 2 * std::exp(-3.0))));
  CHECK(found.wrong[1].index == 1);
  CHECK(found.wrong[2].index == 0);
}

TEST_CASE("the parts of several ranks add up to the whole") {
  std::vector<std::vector<float>> logits;
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 200; ++i) {
    logits.push_back({});
    for (int k = 0; k < 5; ++k) logits.back().push_back(static_cast<float>(std::sin(i * 7.0 + k * 3.0)) * 4);
    labels.push_back(i % 5);
  }
  const EvaluatedLogits whole = rows_of(logits, labels);
  std::vector<std::string> parts{packed(predictions_of({}, 5))};  // a rank without samples
  for (const auto& [begin, end] : {std::pair(0, 70), {70, 200}}) {
    EvaluatedLogits part;
    part.samples = {whole.samples.begin() + begin, whole.samples.begin() + end};
    part.labels = {whole.labels.begin() + begin, whole.labels.begin() + end};
    part.logits = whole.logits.rows(begin, end);
    parts.push_back(packed(predictions_of(part, 5)));
  }
  const Predictions sum = merged(parts);
  check_equal(sum, predictions_of(whole, 5));
  CHECK(sum.wrong.size() == kMostWrong);
  CHECK(packed(predictions_of({}, kMostClasses)).size() + kMostWrong * sizeof(WrongSample) <= 65536);
  for (const std::string& other : {std::string(), std::string("x"), parts[1].substr(1), packed(predictions_of({}, 4))})
    expect_error(ErrorCode::usage, {"different builds"}, [&] { merged({parts[1], other}); });
}

TEST_CASE("labels outside the classes count as samples only, and equal errors are listed by index") {
  EvaluatedLogits evaluated;
  evaluated.samples = {9, 4, 6, 1, 2};
  evaluated.labels = {0, 0, -1, 2, 1};
  evaluated.logits = Tensor(Shape{5, 2}, DType::f64);
  for (int i = 0; i < 10; ++i) evaluated.logits.data<double>()[i] = i % 2;
  const Predictions found = predictions_of(evaluated, 2);
  CHECK(found.samples == 5);
  CHECK(found.counts == std::vector<std::int64_t>{0, 2, 0, 1});
  REQUIRE(found.wrong.size() == 2);
  CHECK(found.wrong[0].index == 4);
  CHECK(found.wrong[1].index == 9);
  for (const WrongSample& one : found.wrong) {
    CHECK(one.truth == 0);
    CHECK(one.predicted == 1);
    CHECK(one.probability == Approx(1 / (1 + std::exp(-1.0))));
  }
}

// Width and height of a PNG, from its header.
std::pair<int, int> size_of(const std::vector<std::uint8_t>& png) {
  const auto number = [&](std::size_t at) {
    return png[at] << 24 | png[at + 1] << 16 | png[at + 2] << 8 | png[at + 3];
  };
  return {number(16), number(20)};
}

TEST_CASE("an image on the page has at most 80 pixels in each direction") {
  const std::vector<std::uint8_t> bytes(81 * 81, 7);
  CHECK(size_of(png_of({1, 80, 80}, bytes)) == std::pair(80, 80));
  CHECK(size_of(png_of({1, 81, 4}, bytes)) == std::pair(2, 41));
  CHECK(size_of(png_of({1, 1, 81}, bytes)) == std::pair(41, 1));
}

}  // namespace
