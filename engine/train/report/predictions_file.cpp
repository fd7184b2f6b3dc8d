// predictions.json.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/text.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/train/report/png_image.h"
#include "engine/train/report/predictions.h"

namespace dp {
namespace {

using PlainJson = nlohmann::json;

constexpr std::uintmax_t kLongest = 16 << 20;  // of the file, in bytes
constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;

void require(bool good) {
  if (!good) throw Error(ErrorCode::data, "not a file of predictions");
}

std::int64_t integer(const PlainJson& value, std::int64_t low, std::int64_t high) {
  require(value.is_number_integer());
  const auto number = value.get<std::int64_t>();
  require(number >= low && number <= high);
  return number;
}

std::string png_text(const PlainJson& value) {
  const auto text = value.get<std::string>();
  require(!text.empty() &&
          text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
              std::string::npos);
  return text;
}

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

PredictionsRecord record_of(const PlainJson& json) {
  PredictionsRecord record;
  Predictions& found = record.predictions;
  found.step = integer(json.at("step"), 0, kMostSamples);
  found.average = json.at("average").get<bool>();
  found.samples = integer(json.at("samples"), 0, kMostSamples);
  const PlainJson& rows = json.at("confusion");
  require(rows.is_array() && !rows.empty() && rows.size() <= static_cast<std::size_t>(kMostClasses));
  found.classes = static_cast<std::int64_t>(rows.size());
  for (const PlainJson& row : rows) {
    require(row.is_array() && row.size() == rows.size());
    for (const PlainJson& count : row) found.counts.push_back(integer(count, 0, kMostSamples));
  }
  record.names = json.at("classes").get<std::vector<std::string>>();
  require(record.names.empty() || record.names.size() == rows.size());
  const PlainJson& wrong = json.at("wrong");
  require(wrong.is_array() && wrong.size() <= kMostWrong);
  for (const PlainJson& one : wrong) {
    const std::int64_t last = found.classes - 1;
    const auto probability = one.at("probability").get<double>();
    require(probability >= 0 && probability <= 1);
    found.wrong.push_back({integer(one.at("index"), 0, kMostSamples),
                           static_cast<std::int32_t>(integer(one.at("true"), 0, last)),
                           static_cast<std::int32_t>(integer(one.at("predicted"), 0, last)), probability});
    record.images.push_back(png_text(one.at("image")));
  }
  return record;
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

std::optional<PredictionsRecord> read_predictions(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error) || std::filesystem::file_size(file, error) > kLongest)
    return std::nullopt;
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  try {
    return record_of(parse_record<PlainJson>(text.str()));
  } catch (const Error&) {
  } catch (const PlainJson::exception&) {
  }
  return std::nullopt;
}

}  // namespace dp
