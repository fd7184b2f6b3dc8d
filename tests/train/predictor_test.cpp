// Predictions equal those of the network in training, whatever the batches and the devices; files, ranks and records.
#include "dp/predictor.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "dp/image.h"
#include "support/catch.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

using namespace dp::test;

namespace {

constexpr std::int64_t kClasses = 7, kImages = 13;

dp::Model rgb_model() {
  dp::ModelBuilder m("rgb", dp::Shape{3, 16, 16});
  const auto x = m.conv2d("conv", m.input(), {.out_channels = 8, .kernel = 3, .padding = 1, .bias = false});
  const auto y = m.max_pool2d(m.relu(m.batch_norm2d("bn", x)), {.kernel = 4});
  return m.build(m.linear("fc", m.flatten(y), {.out_features = kClasses}));
}

// Initial weights, with running statistics of one step.
dp::TrainedModel network(const dp::Model& model = rgb_model()) {
  dp::DataParallel net(model, {.devices = dp::cpus(1), .threads_per_replica = 1});
  dp::Tensor images(model.input().prepended(5));
  float value = 0;
  for (float& x : images.span<float>()) x = std::sin(value += 1.7f);
  net.forward(images);
  dp::TrainedModel trained{model, net.weights()};
  trained.preprocessing = dp::Preprocessing{{{0.4f, 0.5f, 0.6f}, {0.2f, 0.25f, 0.3f}}, dp::Resizing{}};
  return trained;
}

dp::PredictorOptions on(int replicas, std::int64_t batch = 128) {
  dp::PredictorOptions options{.batch_size = batch};
  options.parallel.devices = dp::cpus(replicas);
  options.parallel.threads_per_replica = 1;
  return options;
}

dp::Tensor pixels() {
  dp::Tensor bytes(dp::Shape{kImages, 3, 16, 16}, dp::DType::u8);
  std::uint32_t state = 1;
  for (std::uint8_t& byte : bytes.span<std::uint8_t>())
    byte = static_cast<std::uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

dp::Tensor normalised(const dp::Tensor& bytes, const dp::Normalization& by) {
  dp::Tensor images(bytes.shape());
  const std::int64_t plane = bytes.shape()[2] * bytes.shape()[3];
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    const auto c = static_cast<std::size_t>(i / plane % bytes.shape()[1]);
    images.data<float>()[i] = (static_cast<float>(bytes.data<std::uint8_t>()[i]) / 255.0f - by.mean[c]) / by.std[c];
  }
  return images;
}

std::vector<float> values(const dp::Tensor& tensor) {
  const auto all = tensor.span<float>();
  return {all.begin(), all.end()};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

std::string corpus(const std::string& name) { return DP_SOURCE "/tests/fuzz/image_corpus/" + name; }

const std::vector<std::string> kFiles{"jpeg_420", "jpeg_grey", "png_rgba", "png_palette", "webp_lossy", "jpeg_large"};

std::vector<std::string> files() {
  std::vector<std::string> paths;
  for (const std::string& name : kFiles) paths.push_back(corpus(name));
  return paths;
}

// The outputs of all files, one after another.
std::vector<float> outputs_of(dp::Predictor& predictor, const std::vector<std::string>& paths) {
  std::vector<float> all;
  std::int64_t expected = 0;
  predictor.predict_files(paths, [&](const dp::FilePrediction& one) {
    CHECK(one.index == expected++);
    CHECK(one.fault.empty());
    all.insert(all.end(), one.outputs.begin(), one.outputs.end());
  });
  CHECK(expected == static_cast<std::int64_t>(paths.size()));
  return all;
}

std::vector<std::int64_t> numbers(const std::vector<dp::Score>& scores) {
  std::vector<std::int64_t> all;
  for (const dp::Score& score : scores) all.push_back(score.output);
  return all;
}

dp::Predictor with_scoring(dp::Scoring scoring, std::vector<std::string> classes = {}) {
  dp::TrainedModel trained = network();
  trained.classes = std::move(classes);
  dp::PredictorOptions options = on(1);
  options.scoring = scoring;
  return dp::Predictor(std::move(trained), options);
}

}  // namespace

TEST_CASE("a predictor has the bits of DataParallel::predict, of floats and of bytes") {
  const dp::TrainedModel trained = network();
  const dp::Tensor images = normalised(pixels(), trained.preprocessing->normalization);
  for (const int replicas : {1, 2}) {
    dp::DataParallel net(trained.model, on(replicas).parallel);
    net.set_weights(trained.weights);
    const std::vector<float> expected = values(net.predict(images).clone());
    dp::Predictor predictor(trained, on(replicas));
    const dp::Tensor outputs = predictor.predict(images);
    CHECK(outputs.shape() == dp::Shape{kImages, kClasses});
    CHECK(values(outputs) == expected);
    CHECK(values(predictor.predict(pixels())) == expected);
    CHECK(values(predictor.predict(pixels())) == expected);
  }
}

TEST_CASE("batches and replicas do not change what is predicted") {
  const dp::TrainedModel trained = network();
  dp::Predictor one(trained, on(1));
  const std::vector<float> expected = outputs_of(one, files());
  for (const int replicas : {1, 2, 3})
    for (const std::int64_t batch : {1, 2, 4, 6, 100}) {
      INFO(replicas << " replicas, batch " << batch);
      dp::PredictorOptions options = on(replicas, batch);
      options.parallel.deterministic = true;
      options.workers = 2;
      dp::Predictor predictor(trained, options), again(trained, options);
      const std::vector<float> outputs = outputs_of(predictor, files());
      CHECK(largest_difference(outputs, expected) < 1e-5);
      CHECK(outputs == outputs_of(again, files()));
      for (std::size_t i = 0; i < kFiles.size(); ++i) {
        const std::span<const float> row(outputs.data() + i * kClasses, kClasses);
        const std::span<const float> first(expected.data() + i * kClasses, kClasses);
        CHECK(numbers(predictor.top(row, 3)) == numbers(one.top(first, 3)));
      }
    }
}

TEST_CASE("a file is predicted as its prepared image is") {
  const dp::TrainedModel trained = network();
  dp::Predictor predictor(trained, on(1, 1));
  for (const std::string& path : files()) {
    const dp::Tensor image = dp::prepare_image(dp::read_image(path), *trained.preprocessing, trained.model.input());
    const std::vector<float> expected = values(predictor.predict(image.reshaped(dp::Shape{1, 3, 16, 16})));
    const dp::Tensor outputs = predictor.predict_file(path);
    CHECK(outputs.shape() == dp::Shape{kClasses});
    CHECK(values(outputs) == expected);
    CHECK(outputs_of(predictor, {path}) == expected);
  }
}

TEST_CASE("a network of one channel reads colour files as grey") {
  dp::TrainedModel trained{tiny_model(), dp::DataParallel(tiny_model(), on(1).parallel).weights()};
  trained.preprocessing = dp::preprocessing_of(*tiny_digits().test);
  dp::Predictor predictor(trained, on(2, 2));
  CHECK(outputs_of(predictor, files()).size() == 10 * kFiles.size());
}

TEST_CASE("files that cannot be read are reported in their place, and the others are predicted") {
  const TemporaryFolder folder;
  write_text(folder / "text.jpg", "no image");
  const std::vector<std::string> paths{folder / "text.jpg", corpus("jpeg_420"), folder / "none.png", folder.path(),
                                       corpus("png_rgba")};
  dp::Predictor predictor(network(), on(2, 2));
  const std::vector<float> good = outputs_of(predictor, {paths[1], paths[4]});
  std::vector<float> found;
  std::vector<std::string> faults;
  predictor.predict_files(paths, [&](const dp::FilePrediction& one) {
    CHECK(one.outputs.empty() == !one.fault.empty());
    found.insert(found.end(), one.outputs.begin(), one.outputs.end());
    if (!one.fault.empty()) faults.push_back(one.fault);
  });
  CHECK(largest_difference(found, good) < 1e-5);
  REQUIRE(faults.size() == 3);
  CHECK_THAT(faults[0], Catch::StartsWith(paths[0] + ": neither JPEG nor PNG nor WebP"));
  CHECK_THAT(faults[1], Catch::Contains("none.png"));
  CHECK_THAT(faults[2], Catch::Contains(folder.path()));
  predictor.predict_files({}, [](const dp::FilePrediction&) { FAIL("no file was given"); });
  expect_error(dp::ErrorCode::data, {"text.jpg"}, [&] { predictor.predict_file(paths[0]); });
}

TEST_CASE("a request to stop ends the prediction of files after the batch") {
  std::atomic<int> stop{0};
  dp::PredictorOptions options = on(1, 4);
  options.parallel.stop = &stop;
  dp::Predictor predictor(network(), options);
  std::int64_t done = 0;
  predictor.predict_files(std::vector<std::string>(40, corpus("jpeg_420")), [&](const dp::FilePrediction&) {
    if (++done == 6) stop = 2;
  });
  CHECK(done == 8);
}

TEST_CASE("classes are ranked by their outputs, with the probabilities of softmax or sigmoid, NaN last") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> outputs{1, 3, nan, 3, -2, 0.5f, 2};
  dp::Predictor softmax = with_scoring(dp::Scoring::softmax);
  CHECK(numbers(softmax.top(outputs, 100)) == std::vector<std::int64_t>{1, 3, 6, 0, 5, 4, 2});
  CHECK(numbers(softmax.top(outputs, 2)) == std::vector<std::int64_t>{1, 3});
  CHECK(softmax.top(outputs, 0).empty());
  const std::vector<float> logits{1, 3, 0, 3, -2, 0.5f, 200};
  const auto scores = softmax.top(logits, 2);
  CHECK(scores[0].value == Approx(1));
  CHECK(scores[1].value == Approx(std::exp(-197.0)));
  const std::vector<float> two{0, 0, -1000, -1000, -1000, -1000, std::log(2.0f)};
  CHECK(softmax.top(two, 1)[0].value == Approx(0.5));
  dp::Predictor sigmoid = with_scoring(dp::Scoring::sigmoid);
  CHECK(numbers(sigmoid.top(outputs, 3)) == std::vector<std::int64_t>{1, 3, 6});
  CHECK(sigmoid.top(outputs, 3)[2].value == Approx(1 / (1 + std::exp(-2.0))));
  dp::Predictor plain = with_scoring(dp::Scoring::plain);
  CHECK(numbers(plain.top(outputs, 2)) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(plain.top(outputs)[4].value == -2);
}

TEST_CASE("the recorded loss chooses the scores") {
  dp::TrainedModel trained = network();
  const auto of = [&](const std::string& config) {
    trained.config = config;
    return dp::scoring_of(trained);
  };
  CHECK(of("") == dp::Scoring::softmax);
  CHECK(of(R"({"lr": 0.1})") == dp::Scoring::softmax);
  CHECK(of(R"({"output-loss": null})") == dp::Scoring::softmax);
  CHECK(of(R"({"output-loss": "soft_cross_entropy"})") == dp::Scoring::softmax);
  CHECK(of(R"({"output-loss": "bce_with_logits"})") == dp::Scoring::sigmoid);
  CHECK(of(R"({"output-loss": "focal"})") == dp::Scoring::sigmoid);
  CHECK(of(R"({"output-loss": "mse"})") == dp::Scoring::plain);
  CHECK(of(R"({"own-loss": "hinge"})") == dp::Scoring::plain);
}

TEST_CASE("records quote and escape paths and names") {
  const std::vector<float> outputs{0, 0, -1000, -1000, -1000, -1000, std::log(2.0f)};
  dp::Predictor named =
      with_scoring(dp::Scoring::softmax, {"a,b", "say \"x\"", "c", "d", "e", "f", "\xc3\xa9t\xc3\xa9"});
  CHECK(dp::prediction_names_as_csv(named, 2) == "path,class1,probability1,class2,probability2\n");
  CHECK(dp::prediction_names_as_csv(named, 100).ends_with(",class7,probability7\n"));
  CHECK(dp::prediction_as_csv(named, "1,2\n\"3\".jpg", outputs, 3) ==
        "\"1,2\n\"\"3\"\".jpg\",\xc3\xa9t\xc3\xa9,0.5,\"a,b\",0.25,\"say \"\"x\"\"\",0.25\n");
  CHECK(dp::prediction_as_json(named, "a\"\n\xff.jpg", outputs, 1) ==
        R"({"path":"a\"\n\ufffd.jpg","top":[{"class":"\u00e9t\u00e9","index":6,"probability":0.5}]})"
        "\n");
  dp::Predictor plain = with_scoring(dp::Scoring::plain);
  const std::vector<float> numbers{0.1f, -2, std::numeric_limits<float>::infinity(), 0, 1e-9f, 3, 4};
  CHECK(dp::prediction_names_as_csv(plain, 1) == "path,output0,output1,output2,output3,output4,output5,output6\n");
  CHECK(dp::prediction_as_csv(plain, "p", numbers, 1) == "p,0.1,-2,inf,0,1e-09,3,4\n");
  CHECK(nlohmann::json::parse(dp::prediction_as_json(plain, "p", numbers, 1)) ==
        nlohmann::json::parse(R"({"path":"p","outputs":[0.1,-2,null,0,1e-9,3,4]})"));
}

TEST_CASE("a predictor refuses what does not fit its network") {
  dp::Predictor predictor(network(), on(1));
  const auto refused = [&](const dp::Tensor& images, const std::string& text) {
    expect_error(dp::ErrorCode::usage, {text}, [&] { predictor.predict(images); });
  };
  refused({}, "do not fit model 'rgb'");
  refused(dp::Tensor(dp::Shape{2, 3, 16, 15}), "do not fit model 'rgb'");
  refused(dp::Tensor(dp::Shape{3, 16, 16}, dp::DType::u8), "do not fit model 'rgb'");
  refused(dp::Tensor(dp::Shape{0, 3, 16, 16}, dp::DType::u8), "do not fit model 'rgb'");
  refused(dp::Tensor(dp::Shape{1, 3, 16, 16}, dp::DType::i32), "int32");
  dp::TrainedModel unknown = network();
  unknown.preprocessing.reset();
  dp::Predictor floats(unknown, on(1));
  CHECK(floats.predict(dp::Tensor(dp::Shape{1, 3, 16, 16})).numel() == kClasses);
  expect_error(dp::ErrorCode::usage, {"TrainedModel::preprocessing"}, [&] { floats.predict(pixels()); });
  expect_error(dp::ErrorCode::usage, {"TrainedModel::preprocessing"}, [&] { floats.predict_file(corpus("jpeg_420")); });
  dp::TrainedModel other = network();
  other.preprocessing->normalization.mean.pop_back();
  expect_error(dp::ErrorCode::usage, {"as many means"}, [&] { dp::Predictor(other, on(1)); });
  expect_error(dp::ErrorCode::usage, {"a batch of 0 images"}, [&] { dp::Predictor(network(), on(1, 0)); });
}
