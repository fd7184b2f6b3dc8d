#include "golden/resnet_golden.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dp/random.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {
namespace {

constexpr std::uint64_t kSigns = 777;  // the key of the random signs
constexpr std::size_t kProducts = 32;

bool of_classifier(const std::string& name) {
  return name.starts_with("fc.") || name.starts_with("classifier.") || name.starts_with("head.");
}

// Whether a normalisation is the last one of a block; see ends_block() in golden_resnet.py.
bool ends_block(const std::string& network, const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (network == "mobilenet_v2") return has(".conv.2.") || has(".conv.3.");
  return has(network == "resnet18" || network == "resnet34" ? ".bn2." : ".bn3.");
}

std::pair<float, float> bounds_of(const std::string& name, const Shape& shape, std::int64_t features) {
  if (of_classifier(name)) {
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(features)));
    return {-bound, bound};
  }
  if (shape.rank() == 4 || shape.rank() == 2) {  // a convolution, or a linear layer on each pixel
    const std::int64_t cells = shape.rank() == 4 ? shape[2] * shape[3] : 1;
    const auto bound = static_cast<float>(std::sqrt(6.0 / static_cast<double>(shape[0] * cells)));
    return {-bound, bound};
  }
  if (name.ends_with("weight") || name.ends_with("running_var")) return {0.5f, 1.5f};
  return {-0.5f, 0.5f};
}

// Changes a normalisation's weights or biases for networks deeper than ResNet18, as drawn_state() in golden_resnet.py.
void adapt_to_depth(const std::string& network, const std::string& name, std::span<float> values) {
  const bool scale = name.ends_with(".weight"), shift = name.ends_with(".bias");
  if (of_classifier(name) || (!scale && !shift)) return;
  const bool last = ends_block(network, name);
  const bool inside = name.starts_with("layer") && name.find("downsample") == std::string::npos;
  for (float& value : values)
    if (last)
      value = std::abs(value) * 0.25f;
    else if (shift)
      value += inside && value < 0 ? -3.0f : 3.0f;
}

// Inner products with random sign vectors: bit k of the i-th word of a stream is the sign of element i of vector k.
std::vector<double> products(const Tensor& tensor) {
  std::vector<double> sums(kProducts);
  Random random(kResnetSeed, RandomUse::synthetic, kSigns);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const double signs[] = {value_at(tensor, i), -value_at(tensor, i)};
    const std::uint32_t word = random.next();
    for (std::size_t k = 0; k < kProducts; ++k) sums[k] += signs[word >> k & 1];
  }
  return sums;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// The norm to which an error is relative; see scale() in golden_resnet.py.
double scale_of(const GoldenFile& golden, const std::string& name) {
  if (golden.has(name + ".norm")) return golden.values(name + ".norm").values[0];
  const std::vector<double> values = golden.values(name).values;
  return distance(values, std::vector<double>(values.size()));
}

}  // namespace

NamedTensors resnet_state(const std::string& network, const NamedTensors& like) {
  const auto classifier = std::ranges::find_if(
      like, [](const auto& named) { return named.second.shape().rank() == 2 && of_classifier(named.first); });
  REQUIRE(classifier != like.end());
  const std::int64_t features = classifier->second.shape()[1];
  NamedTensors state;
  for (const auto& [name, tensor] : like) {
    Tensor drawn(tensor.shape(), tensor.dtype() == DType::i64 ? DType::i64 : DType::f32);
    if (drawn.dtype() == DType::i64) {
      *drawn.data<std::int64_t>() = kResnetTracked;
    } else {
      const auto [low, high] = bounds_of(name, tensor.shape(), features);
      Random random(kResnetSeed, RandomUse::init, state.size());
      for (float& value : drawn.span<float>()) value = random.uniform(low, high);
      if (network != "resnet18" && tensor.shape().rank() == 1) adapt_to_depth(network, name, drawn.span<float>());
    }
    state.emplace_back(name, std::move(drawn));
  }
  return state;
}

Batch resnet_batch(const Model& model, std::int64_t rows, std::uint64_t number) {
  Batch batch{Tensor(model.input().prepended(rows)), Tensor({rows}, DType::i32), Tensor({rows}, DType::i64)};
  Random images(kResnetSeed, RandomUse::synthetic, number), labels(kResnetSeed, RandomUse::synthetic, number, 1);
  const auto classes = static_cast<std::uint32_t>(model.output()[0]);
  for (float& value : batch.images.span<float>()) value = images.uniform(-1, 1);
  for (std::int32_t& label : batch.labels.span<std::int32_t>())
    label = static_cast<std::int32_t>(labels.below(classes));
  const auto samples = batch.samples.span<std::int64_t>();
  std::iota(samples.begin(), samples.end(), 0);
  return batch;
}

double golden_error(const GoldenFile& golden, const std::string& name, const Tensor& actual) {
  const double base = scale_of(golden, name);
  double error = 0;
  if (golden.has(name + ".products")) {
    error = distance(products(actual), golden.values(name + ".products").values) / std::sqrt(double{kProducts}) / base;
  } else {
    const HostTensor expected = golden.values(name);
    REQUIRE(actual.shape() == expected.shape);
    std::vector<double> values;
    for (std::int64_t i = 0; i < actual.numel(); ++i) values.push_back(value_at(actual, i));
    error = distance(values, expected.values) / base;
  }
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace dp::test
