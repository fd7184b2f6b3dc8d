// What an evaluation predicted: which classes are taken for which, and the most confident errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/dataset.h"

namespace dp {

inline constexpr std::int64_t kMostClasses = 100;  // with more, nothing is counted
inline constexpr std::size_t kMostWrong = 24;

struct WrongSample {
  std::int64_t index = 0;  // in the test set
  std::int32_t truth = 0, predicted = 0;
  double probability = 0;  // of the predicted class
};

struct Predictions {
  std::int64_t step = 0;
  bool average = false;  // of the moving average of the weights
  std::int64_t classes = 0;
  std::int64_t samples = 0;          // including those without a prediction, because every logit is NaN
  std::vector<std::int64_t> counts;  // [true class * classes + predicted class]
  std::vector<WrongSample> wrong;    // the most probable kMostWrong, in order

  std::int64_t count(std::int64_t truth, std::int64_t predicted) const {
    return counts[static_cast<std::size_t>(truth * classes + predicted)];
  }
};

// The predicted class has the largest logit, the first of equal ones, as in Stats::top1.
Predictions predictions_of(const EvaluatedLogits& evaluated, std::int64_t classes);

// For ranks: each packs its part, at most 64 KiB; merged() adds all parts. Error(usage) for a text of another program.
std::string packed(const Predictions& part);
Predictions merged(const std::vector<std::string>& parts);

// --- predictions.json ----------------------------------------------------------------------------------------

// The pixels of a data set's image of shape (C,H,W), plane after plane, as a PNG: RGB with three channels, otherwise
// grey from the first. An image with more than 80 pixels on a side is reduced by a whole factor, to means.
std::vector<std::uint8_t> png_of(const Shape& shape, std::span<const std::uint8_t> planes);

// With the images of the wrong samples, which are read from `test`. Error(io); Error(data) if an image is unreadable.
void write_predictions(const std::string& file, const Predictions& predictions, const Dataset& test);

}  // namespace dp
