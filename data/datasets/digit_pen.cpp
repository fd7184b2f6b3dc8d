#include "data/datasets/digit_pen.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "data/datasets/digit_glyphs.h"

namespace dp {
namespace {

constexpr float kTau = 2 * std::numbers::pi_v<float>;
constexpr int kPixels = kDigitSide * kDigitSide;
constexpr std::size_t kPieces = 6;  // line segments between two pen points

struct Point {
  float x, y;
};

struct Segment {
  Point from, to;
  float radius_from, radius_to;  // half the width of the line, in pixels
};

struct Path {
  std::array<Segment, kMaxPenPoints * kPieces> segments;
  std::size_t count = 0;

  std::span<Segment> used() { return std::span(segments).first(count); }
};

// Converts the pen points to pixels around the centre of the box. Adds jitter to each point and one slow sine wave in
// each direction, then applies size, slant and rotation.
std::array<Point, kMaxPenPoints> place_points(Random& random, Glyph glyph) {
  const float unsteadiness = random.uniform(0.015f, 0.045f);
  const float bend_x = random.uniform(-0.07f, 0.07f), bend_y = random.uniform(-0.05f, 0.05f);
  const float phase_x = random.uniform(0, kTau), phase_y = random.uniform(0, kTau);
  const float height = random.uniform(16.5f, 22.5f);
  const float width = height * random.uniform(0.52f, 0.92f);
  const float slant = 0.12f + 0.2f * std::clamp(random.normal(), -2.2f, 2.2f);
  const float angle = 0.13f * std::clamp(random.normal(), -2.2f, 2.2f);
  const float cosine = std::cos(angle), sine = std::sin(angle);
  std::array<Point, kMaxPenPoints> placed;
  for (std::size_t i = 0; i < glyph.size(); ++i) {
    float x = glyph[i].x + unsteadiness * random.normal();
    float y = glyph[i].y + unsteadiness * random.normal();
    const float straight_x = x;
    x += bend_x * std::sin(phase_x + 0.8f * kTau * y);
    y += bend_y * std::sin(phase_y + 0.8f * kTau * straight_x);
    x = width * (x - 0.5f);
    y = height * (y - 0.5f);
    x -= slant * y;
    placed[i] = {cosine * x - sine * y, sine * x + cosine * y};
  }
  return placed;
}

// Cubic Hermite spline. Tangents are Catmull-Rom at smooth points, and one-sided at corners and stroke ends.
Path trace(Random& random, Glyph glyph, std::span<const Point> points) {
  const float radius = random.uniform(0.75f, 1.75f);
  const float pressure = random.uniform(0, 0.25f);
  const float phase = random.uniform(0, kTau), speed = random.uniform(0.25f, 0.9f);
  const auto radius_at = [&](float along) { return radius * (1 + pressure * std::sin(phase + speed * along)); };
  const auto tangent = [&](std::size_t i, std::size_t from) -> Point {  // at i, for the span that begins at `from`
    const bool passes = glyph[i].pen == Pen::curve && i + 1 < glyph.size() && glyph[i + 1].pen != Pen::lift;
    const std::size_t before = passes ? i - 1 : from, after = passes ? i + 1 : from + 1;
    const float scale = passes ? 0.5f : 1.0f;
    return {scale * (points[after].x - points[before].x), scale * (points[after].y - points[before].y)};
  };
  Path path;
  for (std::size_t i = 0; i + 1 < glyph.size(); ++i) {
    if (glyph[i + 1].pen == Pen::lift) continue;
    const Point a = points[i], b = points[i + 1], leave = tangent(i, i), arrive = tangent(i + 1, i);
    Point last = a;
    for (std::size_t piece = 1; piece <= kPieces; ++piece) {
      const float t = static_cast<float>(piece) / kPieces, t2 = t * t, t3 = t2 * t;
      const float h0 = 2 * t3 - 3 * t2 + 1, h1 = t3 - 2 * t2 + t, h2 = 3 * t2 - 2 * t3, h3 = t3 - t2;
      const Point next{h0 * a.x + h1 * leave.x + h2 * b.x + h3 * arrive.x,
                       h0 * a.y + h1 * leave.y + h2 * b.y + h3 * arrive.y};
      const float along = static_cast<float>(i) + t;
      path.segments[path.count++] = {last, next, radius_at(along - 1.0f / kPieces), radius_at(along)};
      last = next;
    }
  }
  return path;
}

// Moves the path into the image, randomly off centre. Scales it down if it is too large.
void fit(Random& random, Path& path) {
  constexpr float kMargin = 1, kRoom = kDigitSide - 2 * kMargin, kMaxShift = 2.75f;
  Point low{1e9f, 1e9f}, high{-1e9f, -1e9f};
  for (const Segment& s : path.used())
    for (const Point p : {s.from, s.to}) {
      low = {std::min(low.x, p.x - s.radius_to), std::min(low.y, p.y - s.radius_to)};
      high = {std::max(high.x, p.x + s.radius_to), std::max(high.y, p.y + s.radius_to)};
    }
  const float width = high.x - low.x, height = high.y - low.y;
  const float scale = std::min(1.0f, kRoom / std::max(width, height));
  const auto shift = [&](float size) {
    const float slack = std::min(kMaxShift, (kRoom - scale * size) / 2);
    return kDigitSide / 2.0f + random.uniform(-slack, slack);
  };
  const Point middle{(low.x + high.x) / 2, (low.y + high.y) / 2};
  const Point target{shift(width), shift(height)};
  for (Segment& s : path.used())
    for (Point* p : {&s.from, &s.to}) *p = {target.x + scale * (p->x - middle.x), target.y + scale * (p->y - middle.y)};
}

// Per pixel: distance in pixels from its centre to the edge of the line, negative inside; 1e9 if no line is near.
std::array<float, kPixels> edge_distances(std::span<const Segment> segments) {
  constexpr float kReach = 2;  // pixels outside the edge that may get ink
  std::array<float, kPixels> distances;
  distances.fill(1e9f);
  for (const Segment& s : segments) {
    const float reach = std::max(s.radius_from, s.radius_to) + kReach;
    const auto first = [&](float a, float b) { return std::max(0, static_cast<int>(std::min(a, b) - reach)); };
    const auto last = [&](float a, float b) {
      return std::min(kDigitSide - 1, static_cast<int>(std::max(a, b) + reach));
    };
    const float dx = s.to.x - s.from.x, dy = s.to.y - s.from.y;
    const float inverse = 1 / std::max(dx * dx + dy * dy, 1e-6f);
    const int left = first(s.from.x, s.to.x), right = last(s.from.x, s.to.x);
    for (int row = first(s.from.y, s.to.y); row <= last(s.from.y, s.to.y); ++row)
      for (int column = left; column <= right; ++column) {
        const float px = static_cast<float>(column) + 0.5f - s.from.x, py = static_cast<float>(row) + 0.5f - s.from.y;
        const float t = std::clamp((px * dx + py * dy) * inverse, 0.0f, 1.0f);
        const float ex = px - t * dx, ey = py - t * dy;
        float& best = distances[static_cast<std::size_t>(row * kDigitSide + column)];
        best = std::min(best, std::sqrt(ex * ex + ey * ey) - (s.radius_from + t * (s.radius_to - s.radius_from)));
      }
  }
  return distances;
}

// Approximately standard normal: the sum of four random bytes, from a single draw.
float rough_normal(std::uint32_t word) {
  const std::uint32_t sum = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
  return (static_cast<float>(sum) - 510.0f) * (1 / 147.8f);
}

void ink(Random& random, std::span<const float> distances, std::span<std::uint8_t> pixels) {
  const float sharpness = 1 / random.uniform(0.9f, 1.7f);  // 1 / width of the edge in pixels
  const float darkness = random.uniform(0.8f, 1.0f);
  const float grain = random.uniform(0.02f, 0.12f), dust = random.uniform(0, 0.035f);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    const float noise = rough_normal(random.next());
    const float cover = darkness * std::clamp(0.5f - distances[i] * sharpness, 0.0f, 1.0f);
    const float value = cover + noise * (dust + grain * cover);
    pixels[i] = static_cast<std::uint8_t>(255 * std::clamp(value, 0.0f, 1.0f) + 0.5f);
  }
}

}  // namespace

std::int32_t drawn_digit(Random& random) { return static_cast<std::int32_t>(random.below(10)); }

void draw_digit(Random& random, std::span<std::uint8_t> pixels) {
  const std::int32_t digit = drawn_digit(random);
  const auto glyphs = glyphs_of(digit);
  const Glyph glyph = glyphs[random.below(static_cast<std::uint32_t>(glyphs.size()))];
  const auto points = place_points(random, glyph);
  Path path = trace(random, glyph, points);
  fit(random, path);
  ink(random, edge_distances(path.used()), pixels);
}

}  // namespace dp
