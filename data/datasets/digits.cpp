// Draws the data set "digits".
#include "data/datasets/digits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "dp/error.h"
#include "dp/random.h"

namespace dp {
namespace {

constexpr Pen lift = Pen::lift;
constexpr Pen corner = Pen::corner;

constexpr PenPoint kZeroRound[] = {{.55f, .02f, lift}, {.25f, .12f}, {.05f, .50f}, {.22f, .88f}, {.50f, .99f},
                                   {.80f, .86f},       {.96f, .50f}, {.80f, .14f}, {.50f, .02f}, {.36f, .06f}};
constexpr PenPoint kZeroOpen[] = {{.72f, .10f, lift}, {.40f, .02f}, {.10f, .30f}, {.06f, .65f}, {.30f, .97f},
                                  {.70f, .95f},       {.95f, .60f}, {.90f, .25f}, {.60f, .05f}};
constexpr PenPoint kOnePlain[] = {{.52f, .00f, lift}, {.50f, .50f}, {.50f, 1.0f}};
constexpr PenPoint kOneFlag[] = {{.22f, .25f, lift}, {.58f, .00f, corner}, {.56f, .50f}, {.54f, 1.0f}};
constexpr PenPoint kOneBase[] = {{.25f, .22f, lift}, {.54f, .00f, corner}, {.53f, .50f}, {.52f, .98f},
                                 {.20f, .99f, lift}, {.50f, .98f},         {.85f, .99f}};
constexpr PenPoint kTwoAngled[] = {{.08f, .22f, lift}, {.35f, .02f},         {.75f, .08f}, {.85f, .32f},
                                   {.55f, .62f},       {.05f, .97f, corner}, {.50f, .94f}, {.97f, .96f}};
constexpr PenPoint kTwoLooped[] = {{.08f, .22f, lift}, {.40f, .00f}, {.85f, .18f}, {.70f, .50f}, {.32f, .86f},
                                   {.08f, .94f},       {.07f, .80f}, {.28f, .78f}, {.60f, .94f}, {.97f, .88f}};
constexpr PenPoint kTwoSwung[] = {{.12f, .14f, lift},   {.50f, .00f}, {.90f, .20f}, {.75f, .48f}, {.35f, .76f},
                                  {.08f, .98f, corner}, {.40f, .84f}, {.65f, .98f}, {.98f, .90f}};
constexpr PenPoint kThreeRound[] = {{.10f, .12f, lift}, {.50f, .00f}, {.88f, .20f}, {.70f, .42f}, {.38f, .48f, corner},
                                    {.75f, .55f},       {.95f, .77f}, {.60f, .99f}, {.08f, .90f}};
constexpr PenPoint kThreeFlat[] = {{.10f, .04f, lift}, {.86f, .04f, corner}, {.42f, .40f, corner}, {.80f, .50f},
                                   {.93f, .75f},       {.60f, .98f},         {.08f, .92f}};
constexpr PenPoint kFourOpen[] = {{.24f, .02f, lift}, {.16f, .30f},       {.08f, .58f, corner}, {.50f, .56f},
                                  {.97f, .55f},       {.75f, .06f, lift}, {.72f, .50f},         {.68f, 1.0f}};
constexpr PenPoint kFourClosed[] = {{.64f, .00f, lift}, {.35f, .32f},       {.04f, .66f, corner}, {.50f, .65f},
                                    {.98f, .66f},       {.67f, .00f, lift}, {.67f, .50f},         {.66f, 1.0f}};
constexpr PenPoint kFourCup[] = {{.14f, .04f, lift}, {.08f, .36f},         {.30f, .56f}, {.62f, .50f},
                                 {.84f, .28f},       {.90f, .02f, corner}, {.86f, .50f}, {.80f, 1.0f}};
constexpr PenPoint kFiveOnce[] = {{.90f, .03f, lift}, {.22f, .05f, corner}, {.15f, .42f, corner}, {.50f, .36f},
                                  {.90f, .60f},       {.72f, .93f},         {.35f, .99f},         {.05f, .90f}};
constexpr PenPoint kFiveBar[] = {{.25f, .05f, lift}, {.18f, .43f, corner}, {.55f, .38f}, {.92f, .65f}, {.65f, .96f},
                                 {.08f, .92f},       {.24f, .05f, lift},   {.60f, .05f}, {.96f, .02f}};
constexpr PenPoint kSixSwung[] = {{.75f, .02f, lift}, {.35f, .20f}, {.08f, .60f}, {.25f, .94f}, {.65f, .97f},
                                  {.88f, .72f},       {.60f, .52f}, {.25f, .62f}, {.12f, .78f}};
constexpr PenPoint kSixSteep[] = {{.50f, .00f, lift}, {.20f, .40f}, {.10f, .75f}, {.40f, 1.0f},
                                  {.80f, .88f},       {.80f, .60f}, {.45f, .52f}, {.14f, .70f}};
constexpr PenPoint kSevenPlain[] = {{.05f, .06f, lift}, {.50f, .05f}, {.92f, .04f, corner}, {.60f, .50f}, {.40f, 1.0f}};
constexpr PenPoint kSevenCrossed[] = {{.05f, .06f, lift}, {.50f, .05f},       {.92f, .04f, corner}, {.64f, .45f},
                                      {.45f, 1.0f},       {.25f, .50f, lift}, {.58f, .49f},         {.90f, .47f}};
constexpr PenPoint kSevenHooked[] = {{.07f, .24f, lift},   {.10f, .04f, corner}, {.50f, .06f},
                                     {.93f, .03f, corner}, {.64f, .45f},         {.52f, 1.0f}};
constexpr PenPoint kEightOnce[] = {{.80f, .14f, lift}, {.45f, .00f}, {.15f, .22f}, {.50f, .47f}, {.88f, .74f},
                                   {.50f, 1.0f},       {.10f, .76f}, {.45f, .50f}, {.82f, .26f}, {.74f, .10f}};
constexpr PenPoint kEightLoops[] = {{.50f, .45f, lift}, {.15f, .24f}, {.50f, .00f}, {.85f, .22f}, {.50f, .45f},
                                    {.50f, .46f, lift}, {.08f, .74f}, {.50f, 1.0f}, {.92f, .73f}, {.50f, .46f}};
constexpr PenPoint kNineStraight[] = {{.85f, .18f, lift}, {.50f, .02f},         {.12f, .25f}, {.30f, .52f},
                                      {.68f, .46f},       {.86f, .14f, corner}, {.86f, .50f}, {.80f, 1.0f}};
constexpr PenPoint kNineCurved[] = {{.85f, .18f, lift},   {.50f, .02f}, {.12f, .25f}, {.30f, .52f}, {.68f, .46f},
                                    {.87f, .14f, corner}, {.90f, .55f}, {.70f, .90f}, {.22f, .97f}};
constexpr PenPoint kNineTwice[] = {{.82f, .28f, lift}, {.50f, .02f},       {.12f, .28f}, {.40f, .54f},
                                   {.82f, .28f},       {.85f, .05f, lift}, {.82f, .50f}, {.72f, 1.0f}};

constexpr Glyph kZero[] = {kZeroRound, kZeroOpen};
constexpr Glyph kOne[] = {kOnePlain, kOneFlag, kOneBase};
constexpr Glyph kTwo[] = {kTwoAngled, kTwoLooped, kTwoSwung};
constexpr Glyph kThree[] = {kThreeRound, kThreeFlat};
constexpr Glyph kFour[] = {kFourOpen, kFourClosed, kFourCup};
constexpr Glyph kFive[] = {kFiveOnce, kFiveBar};
constexpr Glyph kSix[] = {kSixSwung, kSixSteep};
constexpr Glyph kSeven[] = {kSevenPlain, kSevenCrossed, kSevenHooked};
constexpr Glyph kEight[] = {kEightOnce, kEightLoops};
constexpr Glyph kNine[] = {kNineStraight, kNineCurved, kNineTwice};
constexpr std::array<std::span<const Glyph>, 10> kDigits{kZero, kOne, kTwo,   kThree, kFour,
                                                         kFive, kSix, kSeven, kEight, kNine};

constexpr bool all_fit() {
  for (const auto& glyphs : kDigits)
    for (const Glyph& glyph : glyphs)
      if (glyph.size() > kMaxPenPoints || glyph.front().pen != Pen::lift) return false;
  return true;
}
static_assert(all_fit());

}  // namespace

std::span<const Glyph> glyphs_of(int digit) { return kDigits[static_cast<std::size_t>(digit)]; }

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

namespace {

// Each image is drawn when it is first read, and kept.
class Digits final : public Dataset {
 public:
  Digits(DigitsPart part, std::int64_t count, std::uint64_t seed)
      : part_(part),
        seed_(seed),
        states_(checked(count)),
        pixels_(std::make_unique_for_overwrite<std::uint8_t[]>(states_.size() * kBytes)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(states_.size()); }
  Shape image_shape() const override { return {1, kDigitSide, kDigitSide}; }
  std::int64_t classes() const override { return 10; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override {
    Random random = random_of(index);
    return drawn_digit(random);
  }

  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    const auto i = static_cast<std::size_t>(index);
    const std::span<std::uint8_t> kept(pixels_.get() + i * kBytes, kBytes);
    if (states_[i].load(std::memory_order_acquire) == State::drawn) {
      std::copy(kept.begin(), kept.end(), out.begin());
      return;
    }
    Random random = random_of(index);
    draw_digit(random, out);
    State missing = State::missing;  // of several threads that draw the same image, one keeps its pixels
    if (!states_[i].compare_exchange_strong(missing, State::taken, std::memory_order_relaxed)) return;
    std::copy_n(out.begin(), kBytes, kept.begin());
    states_[i].store(State::drawn, std::memory_order_release);
  }
  bool varies() const override { return false; }
  std::size_t bytes_to_cache() const override {
    const auto missing = [](const std::atomic<State>& state) { return state.load() == State::missing; };
    return static_cast<std::size_t>(std::count_if(states_.begin(), states_.end(), missing)) * kBytes;
  }

 private:
  enum class State : std::uint8_t { missing, taken, drawn };
  static constexpr std::size_t kBytes = kDigitSide * kDigitSide;

  static std::size_t checked(std::int64_t count) {
    if (count >= 0) return static_cast<std::size_t>(count);
    throw Error(ErrorCode::usage, "digits: the number of images is " + std::to_string(count) + "; give 0 or more");
  }
  Random random_of(std::int64_t index) const {
    return {seed_, RandomUse::digits, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(part_)};
  }

  DigitsPart part_;
  std::uint64_t seed_;
  Normalization normalization_{{0.1394f}, {0.2845f}};
  mutable std::vector<std::atomic<State>> states_;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

}  // namespace

std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed) {
  return std::make_shared<Digits>(part, count, seed);
}

namespace datasets {

DatasetPair digits(std::int64_t train, std::int64_t test, std::uint64_t seed) {
  return {draw_digits(DigitsPart::train, train, seed), draw_digits(DigitsPart::test, test, seed)};
}

}  // namespace datasets
}  // namespace dp
