// Bilinear resizing that averages where it shrinks, bit for bit as Pillow does it and torchvision through Pillow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dp {

struct Region {
  std::int64_t left = 0, top = 0, width = 0, height = 0;

  friend bool operator==(const Region&, const Region&) = default;
};

// Borrowed: rows of red, green, blue.
struct RgbView {
  const std::uint8_t* pixels;
  std::int64_t width, height;
  std::int64_t row_bytes;

  RgbView part(const Region& region) const {
    return {pixels + region.top * row_bytes + region.left * 3, region.width, region.height, row_bytes};
  }
};

// Triangle filter, widened by the scale when shrinking; columns first, then rows, each rounded to 8 bits; weights of 22
// fractional bits. Keeps its memory from call to call.
class Resizer {
 public:
  // `source` resized to width x height; of that only `window`, as planes into out (3 * window.width * window.height).
  // No window reaches beyond width x height.
  void resize(RgbView source, std::int64_t width, std::int64_t height, const Region& window,
              std::span<std::uint8_t> out);

  std::size_t memory() const { return between_.capacity(); }

 private:
  // Which inputs make an output, and how much of each.
  struct Axis {
    void prepare(std::int64_t in, std::int64_t out, std::int64_t begin, std::int64_t count);

    struct Taps {
      std::int64_t first, count;
    };
    std::vector<Taps> taps;             // of every output
    std::vector<std::int32_t> weights;  // `stride` for every output
    std::vector<double> exact;          // of one output
    std::int64_t stride = 0;
  };

  Axis columns_, rows_;
  std::vector<std::uint8_t> between_;  // resized columns of the rows that are needed: three planes for each row
  std::vector<std::int32_t> sums_;     // of one row
};

}  // namespace dp
