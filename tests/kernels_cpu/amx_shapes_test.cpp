// How AmxBackwardWeights packs its operands: numbers that need no AMX.
#include <algorithm>

#include "kernels/conv/cpu_amx.h"
#include "kernels/layer_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::amx;

struct PackCase {
  Window window;
  std::int64_t images, height, width;  // of x
};

Shapes shapes_of(const PackCase& c) {
  const Shape out = test::window_output({c.images, 16, c.height, c.width}, 16, c.window);
  ActivationView x, dy;
  x.n = dy.n = c.images;
  x.h = c.height, x.w = c.width, dy.h = out[2], dy.w = out[3];
  return Shapes(c.window, x, dy);
}

const PackCase kShared{{3, 1, 1}, 3, 16, 16}, kOdd{{3, 1, 1}, 7, 7, 7}, kStrided{{3, 2, 1}, 3, 15, 13},
    kOne{{1, 1, 0}, 70, 4, 4}, kLimit{{3, 1, 1}, 2, 8, 8}, kUneven{{3, 1, 1}, 2, 10, 10}, kCell{{1, 1, 0}, 64, 1, 1},
    kSmallStrided{{3, 2, 1}, 4, 8, 8};

}  // namespace

TEST_CASE("AMX: images are packed in units that fill tiles, and large images share copies between taps") {
  struct Expected {
    PackCase c;
    bool by_column;
    std::int64_t copies, rows, unit, depth, line, block, pitch, plane, elements;
    bool permuted;
  };
  const Expected table[] = {
      {kShared, true, 3, 18, 1, 256, 288, 13824, 16, 288, 4608, false},
      {kOdd, false, 9, 7, 7, 352, 352, 50688, 7, 96, 1536, true},
      {kStrided, false, 9, 8, 1, 64, 64, 9216, 7, 160, 5120, false},
      {kOne, false, 1, 4, 2, 32, 32, 512, 4, 64, 1024, true},
      {kLimit, false, 9, 8, 1, 64, 64, 9216, 8, 96, 1536, true},
      {kUneven, false, 9, 10, 2, 224, 224, 32256, 10, 160, 2560, false},
      {kCell, false, 1, 1, 32, 32, 32, 512, 1, 64, 1024, true},
      {kSmallStrided, false, 9, 4, 2, 32, 32, 4608, 4, 64, 2048, true},
  };
  for (const Expected& e : table) {
    INFO(e.c.images << " images of " << e.c.height << " x " << e.c.width << ", stride " << e.c.window.stride.h);
    const Shapes s = shapes_of(e.c);
    const Planar planar(s);
    CHECK(s.by_column == e.by_column);
    CHECK(s.copies == e.copies);
    CHECK(s.rows == e.rows);
    CHECK(s.unit == e.unit);
    CHECK(s.depth == e.depth);
    CHECK(s.line == e.line);
    CHECK(s.block() == e.block);
    CHECK(s.pixels() == s.out_height * s.out_width);
    CHECK(planar.pitch == e.pitch);
    CHECK(planar.plane == e.plane);
    CHECK(planar.elements(s) == e.elements);
    CHECK(Permutation::fits(s, planar) == e.permuted);
  }
}

TEST_CASE("AMX: the copy of a tap begins at the tap, and its columns are found in the transposed image") {
  for (const PackCase& c : {kShared, kOdd, kStrided, kOne, kSmallStrided, PackCase{{5, 3, 2}, 2, 11, 10}}) {
    const Shapes s = shapes_of(c);
    for (std::int64_t number = 0; number < s.copies; ++number) {
      INFO("copy " << number << ", kernel " << c.window.kernel.h << ", stride " << c.window.stride.h);
      const Copy copy(s, number);
      CHECK(copy.row == (s.by_column ? 0 : number / c.window.kernel.h) - c.window.padding.h);
      CHECK(copy.col == number % c.window.kernel.h - c.window.padding.h);
      CHECK(copy.phase >= 0);
      CHECK(copy.phase < c.window.stride.h);
      CHECK(copy.shift * c.window.stride.h + copy.phase == copy.col);
      std::int64_t columns = 0;
      for (std::int64_t col = 0; col < c.width; ++col) columns += col % c.window.stride.h == copy.phase;
      CHECK(copy.columns == columns);
    }
  }
}

TEST_CASE("AMX: a permutation takes each pixel of a copy from its place in the transposed image") {
  for (const PackCase& c : {kOdd, kOne, kLimit, kSmallStrided}) {
    const Shapes s = shapes_of(c);
    const Planar planar(s);
    for (std::int64_t number = 0; number < s.copies; ++number) {
      const Copy copy(s, number);
      const Permutation permutation(s, planar, copy);
      std::uint64_t found = 0;
      for (std::int64_t pixel = 0; pixel < s.pixels(); ++pixel) {
        INFO("copy " << number << ", pixel " << pixel << " of " << s.pixels());
        const std::int64_t row = pixel / s.out_width * c.window.stride.h + copy.row,
                           col = pixel % s.out_width * c.window.stride.h + copy.col;
        if (row < 0 || row >= c.height || col < 0 || col >= c.width) continue;
        found |= std::uint64_t{1} << pixel;
        CHECK(permutation.from[pixel] == row * planar.pitch + (col - copy.phase) / c.window.stride.h);
      }
      CHECK(permutation.found == found);
    }
  }
}
