// Predictions of a trained network, on every device.
//
//   dp::Predictor predictor(dp::read_trained_model("runs/digits"));
//   for (const dp::Score& score : predictor.top(predictor.predict_file("five.png"), 3))
//     std::printf("%s %.3f\n", predictor.name_of(score.output).c_str(), score.value);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dp/model.h"
#include "dp/parallel_options.h"
#include "dp/tensor.h"
#include "dp/trained_model.h"

namespace dp {

// What the outputs of a network mean. softmax: logits of classes of which an image has one. sigmoid: logits of classes
// that do not exclude each other. plain: numbers.
enum class Scoring { softmax, sigmoid, plain };

// As the loss in TrainedModel::config implies: softmax for cross-entropy, and if nothing is recorded; sigmoid for bce
// and focal; plain for other losses of outputs and for losses of a program's own.
Scoring scoring_of(const TrainedModel& network);

struct PredictorOptions {
  // A batch is divided over all devices. Empty devices: every GPU, or else one CPU replica with all cores. Of the
  // other members, those of the training loss, the gradients and the optimizer have no effect.
  DataParallelOptions parallel{};
  std::optional<Scoring> scoring{};  // empty: scoring_of()
  std::int64_t batch_size = 128;     // global, of predict_files()
  int workers = 0;                   // its threads that decode images; 0: as many as cores are left, 1 to 4
};

// An output of the network, and its probability, or with Scoring::plain its value.
struct Score {
  std::int64_t output;
  double value;
};

struct FilePrediction {
  std::int64_t index;              // in the list of files
  std::span<const float> outputs;  // before the activation, valid during the call; empty: the file cannot be read
  std::string fault{};             // why it cannot be read; begins with its path
};

class Predictor {
 public:
  // Error(data) if the weights are not the model's; errors of DataParallel's constructor; Error(usage) for a
  // preprocessing that does not fit the model.
  explicit Predictor(TrainedModel network, const PredictorOptions& options = {});
  ~Predictor();
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  // The outputs (B, outputs), before the activation, as float32 in host memory. `images` is (B,C,H,W) in host memory:
  // float32 as the network reads them, or uint8, which are normalised first. Each size of a batch is planned once.
  // Error(usage) for other shapes and types, and for uint8 if the preprocessing is unknown.
  Tensor predict(const Tensor& images);

  // The outputs (outputs) for an image file, prepared as in an evaluation. Error(data) if it cannot be read,
  // Error(usage) if the preprocessing is unknown, or if the network does not read images of one or three channels.
  Tensor predict_file(const std::string& path);

  // The same for many files, in batches: threads decode images ahead of the devices. Calls `on_file` for each, in
  // order. A file that cannot be read does not end the work. Returns early once DataParallelOptions::stop is not zero.
  void predict_files(const std::vector<std::string>& files, const std::function<void(const FilePrediction&)>& on_file);

  // The `count` largest of the outputs of an image, the largest first, of equal ones the first; NaN last. With
  // Scoring::plain all outputs, in their order.
  std::vector<Score> top(std::span<const float> outputs, std::int64_t count = 5) const;
  std::vector<Score> top(const Tensor& outputs, std::int64_t count = 5) const {
    return top(outputs.span<float>(), count);
  }
  std::string name_of(std::int64_t output) const;  // its class, or its number if the classes are unknown

  const Model& model() const;
  const std::vector<std::string>& classes() const;  // empty: unknown
  Scoring scoring() const;
  std::vector<std::string> device_names() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Records of predictions: docs/reference/formats.md has the columns and keys. `count`: as of Predictor::top().
std::string prediction_names_as_csv(const Predictor& predictor, std::int64_t count);  // the first line
std::string prediction_as_csv(const Predictor& predictor, const std::string& path, std::span<const float> outputs,
                              std::int64_t count);
std::string prediction_as_json(const Predictor& predictor, const std::string& path, std::span<const float> outputs,
                               std::int64_t count);

}  // namespace dp
