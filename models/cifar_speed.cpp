// The network of Keller Jordan's airbench94, which learns CIFAR-10 in a few epochs (Jordan 2024, arXiv 2404.00498).
#include <dp/dataset.h>
#include <dp/error.h>
#include <dp/models.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace dp::models {
namespace {

using Node = ModelBuilder::Node;

class CifarSpeedBuilder {
 public:
  explicit CifarSpeedBuilder(const CifarSpeedOptions& options) : m_("cifar_speed", options.input) {}

  Model build(std::int64_t width, std::int64_t classes) {
    Node x = gelu(m_.conv2d("whiten", m_.input(), {.out_channels = 24, .kernel = 2}));
    x = group("layers.0", x, width);
    x = group("layers.1", x, 4 * width);
    x = group("layers.2", x, 4 * width);
    x = m_.flatten(m_.max_pool2d(x, {.kernel = 3}));
    x = m_.linear("head", x, {.out_features = classes, .bias = false});
    return m_.build(m_.activation(x, Times{1.0f / 9}));
  }

 private:
  // Two 3x3 convolutions; the first is followed by a max-pool.
  Node group(const std::string& name, Node x, std::int64_t channels) {
    x = m_.max_pool2d(conv(name + ".conv1", x, channels));
    x = gelu(norm(name + ".norm1", x));
    return gelu(norm(name + ".norm2", conv(name + ".conv2", x, channels)));
  }
  // The first output channels start as copies of the input channels.
  Node conv(const std::string& name, Node x, std::int64_t channels) {
    return m_.conv2d(
        name, x,
        {.out_channels = channels, .kernel = 3, .padding = kSamePadding, .bias = false, .init = ConvInit::dirac});
  }
  Node norm(const std::string& name, Node x) { return m_.batch_norm2d(name, x, {.eps = 1e-12, .momentum = 0.4}); }
  Node gelu(Node x) { return m_.activation(x, Gelu{}); }

  ModelBuilder m_;
};

constexpr std::size_t kPatch = 12;  // three channels of 2x2 pixels
using Patch = std::array<double, kPatch>;
using Matrix = std::array<Patch, kPatch>;

// The 2x2 patch of normalised pixels at this position. row, column: of its upper left pixel.
Patch patch_at(const std::vector<std::uint8_t>& bytes, const Shape& shape, const Normalization& normal,
               std::int64_t row, std::int64_t column) {
  Patch patch;
  for (std::size_t k = 0; k < kPatch; ++k) {
    const std::size_t channel = k / 4;
    const auto down = static_cast<std::int64_t>(k / 2 % 2), right = static_cast<std::int64_t>(k % 2);
    const std::int64_t plane = static_cast<std::int64_t>(channel) * shape[1] * shape[2];
    const auto at = static_cast<std::size_t>(plane + (row + down) * shape[2] + column + right);
    patch[k] = (bytes[at] / 255.0 - double{normal.mean[channel]}) / double{normal.std[channel]};
  }
  return patch;
}

// The second moments of the patches of the first 5000 images.
Matrix patch_moments(const Dataset& images) {
  const Shape shape = images.image_shape();
  const std::int64_t count = std::min<std::int64_t>(images.size(), 5000);
  Matrix sums{};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<std::uint8_t> bytes = images.image(i);
    for (std::int64_t row = 0; row + 1 < shape[1]; ++row)
      for (std::int64_t column = 0; column + 1 < shape[2]; ++column) {
        const Patch patch = patch_at(bytes, shape, images.normalization(), row, column);
        for (std::size_t a = 0; a < kPatch; ++a)
          for (std::size_t b = 0; b < kPatch; ++b) sums[a][b] += patch[a] * patch[b];
      }
  }
  for (Patch& row : sums)
    for (double& sum : row) sum /= static_cast<double>(count * (shape[1] - 1) * (shape[2] - 1));
  return sums;
}

// Diagonalises a symmetric matrix by Jacobi's rotations. Returns the eigenvectors as rows; the diagonal has the
// eigenvalues.
Matrix diagonalise(Matrix& matrix) {
  Matrix vectors{};
  for (std::size_t i = 0; i < kPatch; ++i) vectors[i][i] = 1;
  for (int sweep = 0; sweep < 12; ++sweep)  // the error falls quadratically: six or seven reach the last bit
    for (std::size_t p = 0; p < kPatch; ++p)
      for (std::size_t q = p + 1; q < kPatch; ++q) {
        const double angle = 0.5 * std::atan2(2 * matrix[p][q], matrix[q][q] - matrix[p][p]);
        const double cosine = std::cos(angle), sine = std::sin(angle);
        const auto rotate = [&](double& a, double& b) {
          const double first = a;
          a = cosine * first - sine * b, b = sine * first + cosine * b;
        };
        for (Patch& row : matrix) rotate(row[p], row[q]);
        for (std::size_t k = 0; k < kPatch; ++k)
          rotate(matrix[p][k], matrix[q][k]), rotate(vectors[p][k], vectors[q][k]);
      }
  return vectors;
}

}  // namespace

NamedTensors cifar_speed_whitening(const Dataset& images) {
  const Shape shape = images.image_shape();
  if (shape.rank() != 3 || shape[0] != 3 || images.normalization().mean.size() != 3)
    throw Error(ErrorCode::usage, "cifar_speed requires images of three channels, not " + to_string(shape));
  constexpr double kLeast = 5e-4;  // added to a variance
  Matrix moments = patch_moments(images);
  const Matrix directions = diagonalise(moments);
  Tensor filters({2 * kPatch, 3, 2, 2});
  const std::span<float> values = filters.span<float>();
  for (std::size_t i = 0; i < kPatch; ++i)
    for (std::size_t k = 0; k < kPatch; ++k) {
      const auto value = static_cast<float>(directions[i][k] / std::sqrt(moments[i][i] + kLeast));
      values[i * kPatch + k] = value, values[(kPatch + i) * kPatch + k] = -value;
    }
  return {{"whiten.weight", filters}};
}

Model cifar_speed(const CifarSpeedOptions& options) {
  return CifarSpeedBuilder(options).build(options.width, options.classes);
}

}  // namespace dp::models
