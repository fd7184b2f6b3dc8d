#include "engine/train/report/predictions.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/text.h"

namespace dp {
namespace {

bool is_worse(const WrongSample& a, const WrongSample& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.index < b.index;
}

void keep_worst(std::vector<WrongSample>& wrong) {
  const auto end = wrong.begin() + static_cast<std::ptrdiff_t>(std::min(wrong.size(), kMostWrong));
  std::partial_sort(wrong.begin(), end, wrong.end(), is_worse);
  wrong.erase(end, wrong.end());
}

Predictions none_of(std::int64_t classes) {
  Predictions none;
  none.classes = classes;
  none.counts.assign(static_cast<std::size_t>(classes * classes), 0);
  return none;
}

template <typename T>
void count(Predictions& found, const EvaluatedLogits& evaluated) {
  const std::int64_t classes = found.classes;
  const T* logits = evaluated.logits.data<T>();
  for (std::size_t row = 0; row < evaluated.samples.size(); ++row, logits += classes) {
    const std::int32_t truth = evaluated.labels[row];
    std::int64_t best = -1;
    for (std::int64_t k = 0; k < classes; ++k)
      if (!std::isnan(logits[k]) && (best < 0 || logits[k] > logits[best])) best = k;
    ++found.samples;
    if (best < 0 || truth < 0 || truth >= classes) continue;
    ++found.counts[static_cast<std::size_t>(truth * classes + best)];
    if (best == truth) continue;
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(logits[k] - logits[best]));
    if (std::isfinite(sum))
      found.wrong.push_back({evaluated.samples[row], truth, static_cast<std::int32_t>(best), 1 / sum});
  }
}

struct Header {
  std::int64_t classes, samples, wrong;
};

}  // namespace

Predictions predictions_of(const EvaluatedLogits& evaluated, std::int64_t classes) {
  Predictions found = none_of(classes);
  if (evaluated.samples.empty()) return found;
  if (evaluated.logits.dtype() == DType::f64)
    count<double>(found, evaluated);
  else
    count<float>(found, evaluated);
  keep_worst(found.wrong);
  return found;
}

// The header, the counts in 32 bits, the wrong samples.
std::string packed(const Predictions& part) {
  const Header header{part.classes, part.samples, static_cast<std::int64_t>(part.wrong.size())};
  std::string text(reinterpret_cast<const char*>(&header), sizeof header);
  for (const std::int64_t count : part.counts) {
    const auto small = static_cast<std::uint32_t>(count);
    text.append(reinterpret_cast<const char*>(&small), sizeof small);
  }
  return text.append(reinterpret_cast<const char*>(part.wrong.data()), part.wrong.size() * sizeof(WrongSample));
}

Predictions merged(const std::vector<std::string>& parts) {
  Predictions sum;
  for (const std::string& text : parts) {
    Header header{};
    if (text.size() >= sizeof header) std::memcpy(&header, text.data(), sizeof header);
    if (sum.counts.empty()) sum = none_of(std::clamp<std::int64_t>(header.classes, 0, kMostClasses));
    const std::size_t at = sizeof header + sum.counts.size() * sizeof(std::uint32_t);
    const auto wrong = static_cast<std::size_t>(header.wrong);
    if (header.classes != sum.classes || wrong > kMostWrong || text.size() != at + wrong * sizeof(WrongSample))
      throw Error(ErrorCode::usage,
                  "the ranks run different builds of the program; start the same build on every host");
    sum.samples += header.samples;
    for (std::size_t i = 0; i < sum.counts.size(); ++i) {
      std::uint32_t small = 0;
      std::memcpy(&small, text.data() + sizeof header + i * sizeof small, sizeof small);
      sum.counts[i] += small;
    }
    const std::size_t before = sum.wrong.size();
    sum.wrong.resize(before + wrong);
    if (wrong > 0) std::memcpy(sum.wrong.data() + before, text.data() + at, wrong * sizeof(WrongSample));
  }
  keep_worst(sum.wrong);
  return sum;
}

// --- predictions.json ------------------------------------------------------------------------------------------

std::vector<std::uint8_t> png_of(const Shape& shape, std::span<const std::uint8_t> planes) {
  constexpr std::int64_t kSide = 80;
  const std::int64_t height = shape[1], width = shape[2], channels = shape[0] == 3 ? 3 : 1;
  const std::int64_t factor = (std::max(height, width) + kSide - 1) / kSide;
  const std::int64_t rows = (height + factor - 1) / factor, columns = (width + factor - 1) / factor;
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(rows * columns * channels));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        std::int64_t sum = 0, count = 0;
        for (std::int64_t y = row * factor; y < std::min((row + 1) * factor, height); ++y)
          for (std::int64_t x = column * factor; x < std::min((column + 1) * factor, width); ++x, ++count)
            sum += planes[static_cast<std::size_t>((channel * height + y) * width + x)];
        pixels.push_back(static_cast<std::uint8_t>((sum + count / 2) / count));
      }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(columns);
  image.height = static_cast<png_uint_32>(rows);
  image.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> png(bytes);
  if (png_image_write_to_memory(&image, png.data(), &bytes, 0, pixels.data(), 0, nullptr) == 0) {
    const std::string what = image.message;
    png_image_free(&image);
    throw Error(ErrorCode::io, "an image of the report was not made: " + what);
  }
  png.resize(bytes);
  return png;
}

namespace {

// A data set of the caller's may throw anything.
std::string png_text(const Dataset& test, std::int64_t index) {
  try {
    return base64(png_of(test.image_shape(), test.image(index)));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::data, "test image " + std::to_string(index) + " was not read: " + error.what());
  }
}

}  // namespace

void write_predictions(const std::string& file, const Predictions& predictions, const Dataset& test) {
  nlohmann::ordered_json json{{"step", predictions.step},
                              {"average", predictions.average},
                              {"samples", predictions.samples},
                              {"classes", nlohmann::ordered_json::array()},
                              {"confusion", nlohmann::ordered_json::array()},
                              {"wrong", nlohmann::ordered_json::array()}};
  const std::vector<std::string> names = test.class_names();
  if (names.size() == static_cast<std::size_t>(predictions.classes)) json["classes"] = names;
  for (std::int64_t truth = 0; truth < predictions.classes; ++truth) {
    const auto row = predictions.counts.begin() + static_cast<std::ptrdiff_t>(truth * predictions.classes);
    json["confusion"].push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(predictions.classes)));
  }
  for (const WrongSample& wrong : predictions.wrong)
    json["wrong"].push_back({{"index", wrong.index},
                             {"true", wrong.truth},
                             {"predicted", wrong.predicted},
                             {"probability", wrong.probability},
                             {"image", png_text(test, wrong.index)}});
  write_file_atomically(file, json_line(json) + "\n");
}

}  // namespace dp
