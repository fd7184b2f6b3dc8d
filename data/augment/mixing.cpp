#include "data/augment/mixing.h"

#include <algorithm>
#include <cmath>

namespace dp {

double draw_beta(double alpha, Random& random) {
  for (;;) {
    const double x = std::pow(static_cast<double>(random.uniform()), 1 / alpha);
    const double y = std::pow(static_cast<double>(random.uniform()), 1 / alpha);
    if (x + y > 0 && x + y <= 1) return x / (x + y);
  }
}

Mix cut_box(double left, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
  const double half = 0.5 * std::sqrt(1 - left);
  const auto half_rows = static_cast<std::int64_t>(half * static_cast<double>(rows));
  const auto half_columns = static_cast<std::int64_t>(half * static_cast<double>(columns));
  Mix mix;
  mix.pastes = true;
  mix.pasted.left = std::max<std::int64_t>(column - half_columns, 0);
  mix.pasted.top = std::max<std::int64_t>(row - half_rows, 0);
  mix.pasted.width = std::min(column + half_columns, columns) - mix.pasted.left;
  mix.pasted.height = std::min(row + half_rows, rows) - mix.pasted.top;
  mix.own = 1 - static_cast<double>(mix.pasted.width * mix.pasted.height) / static_cast<double>(rows * columns);
  return mix;
}

Mix draw_mix(const TargetOptions& options, const Shape& image, Random& random) {
  const bool both = options.mixup_alpha > 0 && options.cutmix_alpha > 0;
  const bool cuts = both ? random.below(2) == 1 : options.cutmix_alpha > 0;
  if (!options.mixes()) return {};
  if (!cuts) return {.own = draw_beta(options.mixup_alpha, random)};
  const double left = draw_beta(options.cutmix_alpha, random);
  const auto column = static_cast<std::int64_t>(random.below(static_cast<std::uint32_t>(image[2])));
  const auto row = static_cast<std::int64_t>(random.below(static_cast<std::uint32_t>(image[1])));
  return cut_box(left, row, column, image[1], image[2]);
}

void mix_images(const Mix& mix, float* images, std::int64_t rows, const Shape& image) {
  const std::int64_t size = image.numel();
  const auto own = static_cast<float>(mix.own), other = static_cast<float>(1 - mix.own);
  for (std::int64_t i = 0; i < rows / 2; ++i) {
    float *const a = images + i * size, *const b = images + (rows - 1 - i) * size;
    if (mix.pastes) {
      for (std::int64_t plane = 0; plane < image[0]; ++plane)
        for (std::int64_t row = mix.pasted.top; row < mix.pasted.top + mix.pasted.height; ++row) {
          const std::int64_t begin = (plane * image[1] + row) * image[2] + mix.pasted.left;
          std::swap_ranges(a + begin, a + begin + mix.pasted.width, b + begin);
        }
      continue;
    }
    for (std::int64_t k = 0; k < size; ++k) {
      const float x = a[k], y = b[k];
      a[k] = own * x + other * y, b[k] = own * y + other * x;
    }
  }
}

void fill_targets(const Mix& mix, const TargetOptions& options, std::span<const std::int32_t> labels, double factor,
                  std::int64_t classes, std::int64_t columns, float* targets) {
  const double smoothing = static_cast<double>(options.label_smoothing);
  for (std::size_t i = 0; i < labels.size(); ++i, targets += columns) {
    const std::int32_t label = labels[i], other = labels[labels.size() - 1 - i];
    for (std::int64_t k = 0; k < classes; ++k) {
      const double share = (k == label ? mix.own : 0) + (k == other ? 1 - mix.own : 0);
      const double weight = static_cast<std::size_t>(k) < options.class_weights.size()
                                ? static_cast<double>(options.class_weights[static_cast<std::size_t>(k)])
                                : 1;
      targets[k] =
          static_cast<float>(factor * weight * ((1 - smoothing) * share + smoothing / static_cast<double>(classes)));
    }
  }
}

}  // namespace dp
