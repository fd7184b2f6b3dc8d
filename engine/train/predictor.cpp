// Predictions of a trained network: tensors and image files in, outputs, ranked classes and records out.
#include "dp/predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "data/datasets/prepare_image.h"
#include "data/formats/rgb_image.h"
#include "data/loader/batch_filler.h"
#include "dp/data_parallel.h"
#include "dp/default_devices.h"
#include "dp/error.h"
#include "dp/loader.h"
#include "dp/run_options.h"
#include "engine/base/text.h"
#include "engine/train/passes.h"

namespace dp {
namespace {

// The data set of the files to predict. A file that cannot be read gives a black image, and a fault.
class FilesToPredict final : public Dataset {
 public:
  FilesToPredict(const std::vector<std::string>& files, const Preprocessing& preprocessing, const Shape& input)
      : files_(files), preprocessing_(preprocessing), input_(input) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  Shape image_shape() const override { return input_; }
  std::int64_t classes() const override { return 1; }
  const Normalization& normalization() const override { return preprocessing_.normalization; }
  std::int32_t label(std::int64_t) const override { return 0; }

  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    thread_local ImageWorkplace mine;
    try {
      const std::string& path = files_[static_cast<std::size_t>(index)];
      read_image_file(path, mine.file);
      decode_image(path, mine.file, mine.image);
      mine.prepare(preprocessing_.resizing, input_, out);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::data) throw;
      std::ranges::fill(out, std::uint8_t{0});
      const std::scoped_lock lock(mutex_);
      faults_.emplace(index, error.what());
    }
    mine.shrink();
  }

  // Why the file cannot be read; empty if it was read.
  std::string take_fault(std::int64_t index) const {
    const std::scoped_lock lock(mutex_);
    const auto found = faults_.extract(index);
    return found ? found.mapped() : "";
  }

 private:
  const std::vector<std::string>& files_;
  const Preprocessing& preprocessing_;
  const Shape input_;
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::string> faults_;
};

// One replica of a CPU has every core for a small batch, too.
PredictorOptions with_devices(PredictorOptions options) {
  std::vector<Device>& devices = options.parallel.devices;
  if (!devices.empty()) return options;
  devices = default_devices();
  if (devices.front().kind == DeviceKind::cpu) devices = cpus(1);
  return options;
}

}  // namespace

Scoring scoring_of(const TrainedModel& network) {
  if (network.config.empty()) return Scoring::softmax;
  for (const RecordedOption& option : recorded_options(network.config)) {
    if (option.name == "own-loss") return Scoring::plain;
    if (option.name != "output-loss" || option.texts.empty()) continue;
    const std::string& loss = option.texts.front();
    if (loss == BceWithLogitsLoss::kName || loss == FocalLoss::kName) return Scoring::sigmoid;
    return loss == SoftCrossEntropyLoss::kName ? Scoring::softmax : Scoring::plain;
  }
  return Scoring::softmax;
}

struct Predictor::State {
  PredictorOptions options;
  std::vector<std::string> classes;
  std::optional<Preprocessing> preprocessing;
  Scoring scoring;
  DataParallel net;
  NormalisedBytes table{};
  Tensor input{};  // normalised images of the last batch of bytes

  State(TrainedModel network, const PredictorOptions& given)
      : options(with_devices(given)),
        classes(std::move(network.classes)),
        preprocessing(std::move(network.preprocessing)),
        scoring(options.scoring.value_or(scoring_of(network))),
        net(network.model, options.parallel) {
    net.set_weights(network.weights);
    options.parallel = net.options();
    if (options.batch_size < 1)
      throw Error(ErrorCode::usage, fmt::format("a batch of {} images; give at least 1", options.batch_size));
    if (options.workers == 0) options.workers = loader_threads(options.parallel);
    if (!preprocessing) return;
    const Normalization& by = preprocessing->normalization;
    const auto channels = static_cast<std::size_t>(net.model().input()[0]);
    if (by.mean.size() != channels || by.std.size() != channels ||
        !std::ranges::all_of(by.std, [](float deviation) { return deviation > 0; }))
      throw Error(ErrorCode::usage, fmt::format("the network reads {} channels, which need as many means and positive "
                                                "deviations to be normalised",
                                                channels));
    table = normalised_bytes(by);
  }

  const Preprocessing& known_preprocessing() const {
    if (preprocessing) return *preprocessing;
    throw Error(ErrorCode::usage,
                "it is unknown how images are prepared for this network; set TrainedModel::preprocessing, or give "
                "float32 images that are normalised");
  }

  void require_files() const {
    known_preprocessing();
    require_image_input(net.model().input());
  }

  const Tensor& normalised(const Tensor& images) {
    known_preprocessing();
    const Shape& shape = images.shape();
    if (shape.rank() != 4 || shape[0] < 1 || shape.without_first() != net.model().input()) return images;  // refused
    if (input.empty() || input.shape() != shape) input = Tensor(shape);
    const std::int64_t plane = shape[2] * shape[3], bytes = shape[1] * plane;
    float* to = input.data<float>();
    for (std::int64_t row = 0; row < shape[0]; ++row)
      to = normalise(images.data<std::uint8_t>() + row * bytes, plane, table, to);
    return input;
  }
};

Predictor::Predictor(TrainedModel network, const PredictorOptions& options)
    : state_(std::make_unique<State>(std::move(network), options)) {}
Predictor::~Predictor() = default;

Tensor Predictor::predict(const Tensor& images) {
  State& s = *state_;
  const bool bytes = !images.empty() && images.dtype() == DType::u8;
  const Tensor outputs = s.net.predict(bytes ? s.normalised(images) : images).clone();
  return outputs.to(DType::f32);
}

Tensor Predictor::predict_file(const std::string& path) {
  State& s = *state_;
  s.require_files();
  const Tensor image = prepare_image(read_image(path), *s.preprocessing, model().input());
  const Tensor outputs = predict(image.reshaped(image.shape().prepended(1)));
  return outputs.reshaped(outputs.shape().without_first());
}

void Predictor::predict_files(const std::vector<std::string>& files,
                              const std::function<void(const FilePrediction&)>& on_file) {
  State& s = *state_;
  s.require_files();
  if (files.empty()) return;
  const auto images = std::make_shared<FilesToPredict>(files, *s.preprocessing, model().input());
  const auto stopped = [stop = s.options.parallel.stop] { return stop != nullptr && stop->load() != 0; };
  Loader loader(images, {.batch_size = std::min(s.options.batch_size, images->size()),
                         .shuffle = false,
                         .workers = s.options.workers,
                         .stop = stopped});
  loader.start(0);
  std::int64_t index = 0;
  while (const Batch* const batch = stopped() ? nullptr : loader.next()) {
    const Tensor outputs = predict(batch->images);
    const auto values = outputs.span<float>();
    const std::size_t each = values.size() / static_cast<std::size_t>(batch->size());
    for (std::int64_t row = 0; row < batch->size(); ++row, ++index) {
      FilePrediction prediction{index, {}, images->take_fault(index)};
      if (prediction.fault.empty()) prediction.outputs = values.subspan(static_cast<std::size_t>(row) * each, each);
      on_file(prediction);
    }
  }
}

std::vector<Score> Predictor::top(std::span<const float> outputs, std::int64_t count) const {
  std::vector<Score> scores;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    scores.push_back({static_cast<std::int64_t>(i), static_cast<double>(outputs[i])});
  if (scoring() == Scoring::plain) return scores;
  // By the outputs: probabilities may round to equal ones.
  const auto is_better = [](const Score& a, const Score& b) {
    const bool a_known = !std::isnan(a.value), b_known = !std::isnan(b.value);
    if (a_known != b_known) return a_known;
    return a_known && a.value != b.value ? a.value > b.value : a.output < b.output;
  };
  const auto end = scores.begin() + std::clamp<std::int64_t>(count, 0, static_cast<std::int64_t>(scores.size()));
  std::partial_sort(scores.begin(), end, scores.end(), is_better);
  if (scores.empty()) return scores;
  if (scoring() == Scoring::sigmoid) {
    for (Score& score : scores) score.value = 1 / (1 + std::exp(-score.value));
  } else if (end != scores.begin()) {
    const double most = scores.front().value;
    double sum = 0;
    for (Score& score : scores) sum += score.value = std::exp(score.value - most);
    for (Score& score : scores) score.value /= sum;
  }
  scores.erase(end, scores.end());
  return scores;
}

std::string Predictor::name_of(std::int64_t output) const {
  const auto& names = state_->classes;
  return names.empty() ? std::to_string(output) : names.at(static_cast<std::size_t>(output));
}

const Model& Predictor::model() const { return state_->net.model(); }
const std::vector<std::string>& Predictor::classes() const { return state_->classes; }
Scoring Predictor::scoring() const { return state_->scoring; }
std::vector<std::string> Predictor::device_names() const { return state_->net.device_names(); }

// --- records --------------------------------------------------------------------------------------------------------

namespace {

// The shortest text that gives the same float.
std::string number_text(double value) { return fmt::format("{}", static_cast<float>(value)); }
nlohmann::ordered_json json_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return nlohmann::ordered_json::parse(number_text(value));
}

}  // namespace

std::string prediction_names_as_csv(const Predictor& predictor, std::int64_t count) {
  const std::int64_t outputs = predictor.model().output().numel();
  std::string line = "path";
  if (predictor.scoring() == Scoring::plain)
    for (std::int64_t i = 0; i < outputs; ++i)
      line += "," + csv_field(predictor.classes().empty() ? fmt::format("output{}", i) : predictor.name_of(i));
  else
    for (std::int64_t i = 1; i <= std::min(count, outputs); ++i) line += fmt::format(",class{},probability{}", i, i);
  return line + "\n";
}

std::string prediction_as_csv(const Predictor& predictor, const std::string& path, std::span<const float> outputs,
                              std::int64_t count) {
  std::string line = csv_field(path);
  for (const Score& score : predictor.top(outputs, count)) {
    if (predictor.scoring() != Scoring::plain) line += "," + csv_field(predictor.name_of(score.output));
    line += "," + number_text(score.value);
  }
  return line + "\n";
}

std::string prediction_as_json(const Predictor& predictor, const std::string& path, std::span<const float> outputs,
                               std::int64_t count) {
  nlohmann::ordered_json record{{"path", path}};
  nlohmann::ordered_json& list = record[predictor.scoring() == Scoring::plain ? "outputs" : "top"];
  list = nlohmann::ordered_json::array();
  for (const Score& score : predictor.top(outputs, count))
    if (predictor.scoring() == Scoring::plain)
      list.push_back(json_number(score.value));
    else
      list.push_back({{"class", predictor.name_of(score.output)},
                      {"index", score.output},
                      {"probability", json_number(score.value)}});
  return json_line(record) + "\n";
}

}  // namespace dp
