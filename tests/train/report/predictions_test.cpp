// predictions.json: its counts and images, beside those of the model itself, and what damaged files do to the page.
#include "engine/train/report/predictions.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "data/formats/rgb_image.h"
#include "dp/report.h"
#include "engine/train/report/png_image.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::expect_error;
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

PredictionsRecord trained(TrainerOptions options, bool average = false) {
  const TemporaryFolder temp;
  options.output_dir = temp.path();
  Trainer trainer(tiny_model(), tiny_digits(), options);
  const RunSummary summary = trainer.run();
  const auto record = read_predictions(temp / "predictions.json");
  REQUIRE(record);
  const Predictions& found = record->predictions;
  check_equal(found, direct(average ? trainer.net().average_weights() : trainer.net().weights()));
  CHECK(found.step == summary.steps);
  CHECK(found.average == average);
  std::int64_t right = 0;
  for (std::int64_t k = 0; k < 10; ++k) right += found.count(k, k);
  CHECK(100.0 * static_cast<double>(right) / 130 == Approx(summary.top1));
  options.output_dir.clear();  // storing the logits changes no weight
  CHECK(tiny_run(options).weights_sha256 == summary.weights_sha256);
  return *record;
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
  const PredictionsRecord record = trained(tiny_options());
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
  CHECK_THAT(page, Catch::Contains("Confusion matrix") && Catch::Contains("&lt;script&gt;"));
  CHECK_THAT(page, !Catch::Contains("<script") && !Catch::Contains("<img"));
}

TEST_CASE("a run with more than 100 classes has no predictions, and its page says so") {
  const TemporaryFolder temp;
  for (const auto& [classes, expected] : {std::pair(100, true), {101, false}}) {
    const std::string folder = temp / std::to_string(classes);
    TrainerOptions options{.epochs = 1, .batch_size = 16};
    options.parallel.devices = cpus(2);
    options.output_dir = folder;
    const DatasetPair data = datasets::synthetic({1, 6, 6}, classes, 64, 300);
    Trainer(models::mlp({.input = {1, 6, 6}, .hidden = {4}, .classes = classes}), data, options).run();
    CHECK(std::filesystem::exists(folder + "/predictions.json") == expected);
    const std::string page = read_text(folder + "/report.html");
    CHECK((page.find("Confusion matrix") != std::string::npos) == expected);
    CHECK((page.find("There is no confusion matrix") == std::string::npos) == expected);
  }
}

TEST_CASE("the column labels of a confusion matrix are above it, as names or numbers") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.max_steps = 1;
  tiny_run(options);
  nlohmann::json predictions = nlohmann::json::parse(read_text(temp / "predictions.json"));
  for (const bool named : {false, true}) {
    for (int k = 0; k < 10 && named; ++k) predictions["classes"][k] = "digit " + std::to_string(k);
    write_text(temp / "predictions.json", predictions.dump());
    write_report({temp.path()}, temp / "page.html");
    const std::string page = read_text(temp / "page.html");
    // The labels of the first two rows give the upper edge: a label is 3.5 below the middle of its row.
    const std::regex row_label(R"(y=\"([0-9.]+)\" class=\"end\">)");
    const std::regex column_label(named ? R"(translate\([0-9.]+ ([0-9.]+)\) rotate\(-90\)\">digit 0<)"
                                        : R"(y=\"([0-9.]+)\" class=\"middle\">0<)");
    const std::string matrix = page.substr(page.find(">predicted</text>"));
    std::smatch first, second, column;
    REQUIRE(std::regex_search(matrix, first, row_label));
    const std::string rest = first.suffix();
    REQUIRE(std::regex_search(rest, second, row_label));
    REQUIRE(std::regex_search(matrix, column, column_label));
    const double cell = std::stod(second[1]) - std::stod(first[1]), top = std::stod(first[1]) - cell / 2 - 3.5;
    CHECK(std::stod(column[1]) < top);
    std::smatch axis;
    const std::regex label(R"re(x="([0-9.]+)" y="11" class="middle">predicted<)re");
    REQUIRE(std::regex_search(page, axis, label));
    const double left = 360 - 1 - 10 * cell;  // of the columns; the view box is 360 wide
    CHECK(std::stod(axis[1]) == Approx((left + 360) / 2).margin(1));
  }
}

TEST_CASE("a page is made again from predictions.json alone, and without it if it is damaged") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.max_steps = 3;
  tiny_run(options);
  const std::string page = read_text(temp / "report.html");
  write_report({temp.path()}, temp / "again.html");
  CHECK(read_text(temp / "again.html") == page);
  const auto good = nlohmann::json::parse(read_text(temp / "predictions.json"));
  std::vector<std::string> damaged{
      "", "{", "null", "[]", "{\"step\":1}", read_text(temp / "predictions.json").substr(1)};
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    damaged.push_back(changed.dump());
  };
  with("/step", "1");
  with("/samples", -1);
  with("/average", 0);
  with("/classes", nlohmann::json{"a", "b"});
  with("/classes", nlohmann::json{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  with("/confusion", nlohmann::json::array());
  with("/confusion/0", nlohmann::json{1, 2});
  with("/confusion/3/4", -1);
  with("/confusion/3/4", 0.5);
  with("/confusion", std::vector<std::vector<int>>(101, std::vector<int>(101)));
  with("/wrong", 7);
  with("/wrong/0/true", 10);
  with("/wrong/0/predicted", -1);
  with("/wrong/0/probability", 1.5);
  with("/wrong/0/index", nullptr);
  with("/wrong/0/image", "\"/><script>alert(1)</script>");
  with("/wrong/0/image", "");
  with("/wrong", std::vector<nlohmann::json>(25, good["wrong"][0]));
  for (const std::string& text : damaged) {
    INFO(text.substr(0, 200));
    write_text(temp / "predictions.json", text);
    CHECK_FALSE(read_predictions(temp / "predictions.json"));
    write_report({temp.path()}, temp / "again.html");
    CHECK_THAT(read_text(temp / "again.html"), !Catch::Contains("Confusion") && !Catch::Contains("<script"));
  }
  std::filesystem::remove(temp / "predictions.json");
  std::filesystem::create_directory(temp / "predictions.json");
  CHECK_FALSE(read_predictions(temp / "predictions.json"));
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
  CHECK_THAT(read_text(temp / "report.html"), Catch::Contains("(complete)"));
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

}  // namespace
