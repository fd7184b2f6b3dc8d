#include "kernels/norm/cpu_plane.h"

#include <type_traits>

#include "kernels/device/cpu/lanes.h"

namespace dp::kernels {
namespace {

// The number of vectors that are accumulated in float before the result is added in double. bfloat16 inputs allow
// longer runs, because their own rounding error is larger.
template <typename T>
constexpr std::int64_t kRun = std::is_same_v<T, BFloat16> ? 256 : 64;

// The number of pixels in a run that fits in the L1 cache, so that all strips of channels read it from there.
template <typename T>
std::int64_t cached_run(const NormPlane& plane, std::int64_t least) {
  constexpr std::int64_t kBytes = 16 << 10;
  return std::clamp<std::int64_t>(kBytes / (plane.block * static_cast<std::int64_t>(sizeof(T))), least, kRun<T>);
}

// A run of `count` vectors in a plane, from element `first` on, `step` elements apart. The SIMD lanes are channels from
// `channel` on, or pixels if the plane has one channel.
struct Strip {
  std::int64_t first, step, count, channel;
  std::int64_t pixel;  // the first pixel, in the plane
  bool along;          // true: the SIMD lanes are pixels
};

// Calls body(Lanes, Strip) for strips of at most `run` vectors that cover the plane, in pixel order.
template <typename Body>
void for_strips(const NormPlane& plane, std::int64_t run, const Body& body) {
  if (plane.block == 1) {
    std::int64_t at = 0;
    for (std::int64_t vectors = plane.pixels / kLanes; vectors > 0; vectors -= run) {
      const std::int64_t count = std::min(vectors, run);
      body(Lanes<kLanes>{}, Strip{at, kLanes, count, 0, at, true});
      at += count * kLanes;
    }
    if (at < plane.pixels) body(Lanes<1>{}, Strip{at, 1, plane.pixels - at, 0, at, true});
    return;
  }
  for (std::int64_t pixel = 0; pixel < plane.pixels; pixel += run) {
    const std::int64_t count = std::min(run, plane.pixels - pixel);
    const auto strip = [&](std::int64_t c) {
      return Strip{pixel * plane.block + c, plane.block, count, c, pixel, false};
    };
    std::int64_t c = 0;
    for (; c + kLanes <= plane.block; c += kLanes) body(Lanes<kLanes>{}, strip(c));
    if constexpr (kLanes > 8)
      for (; c + 8 <= plane.block; c += 8) body(Lanes<8>{}, strip(c));
    for (; c < plane.block; ++c) body(Lanes<1>{}, strip(c));
  }
}

// The value of each lane's channel.
template <typename V>
typename V::Floats for_lanes(const Strip& strip, const float* of_channels) {
  return strip.along ? typename V::Floats{} + of_channels[0] : V::load(of_channels + strip.channel);
}

// Calls term(sums, element) for each vector of the strip, with four independent sets of sums, then adds the four.
template <typename V, int kSums>
struct Sums {
  typename V::Floats of[kSums] = {};
};
template <typename V, int kSums, typename Term>
Sums<V, kSums> sum_strip(const Strip& strip, const Term& term) {
  Sums<V, kSums> a, b, c, d;
  const std::int64_t step = strip.step;
  std::int64_t i = 0, at = strip.first;
  for (; i + 4 <= strip.count; i += 4, at += 4 * step) {
    term(a, at);
    term(b, at + step);
    term(c, at + 2 * step);
    term(d, at + 3 * step);
  }
  for (; i < strip.count; ++i, at += step) term(a, at);
  for (int s = 0; s < kSums; ++s) a.of[s] = (a.of[s] + b.of[s]) + (c.of[s] + d.of[s]);
  return a;
}

// Adds each lane to the double of its channel.
template <typename V>
void add_lanes(const Strip& strip, typename V::Floats value, double* to) {
  for (int lane = 0; lane < V::count; ++lane)
    to[strip.along ? 0 : strip.channel + lane] += static_cast<double>(value[lane]);
}

template <typename V, bool kRelu, bool kAdd, typename T>
void normalise_strip(const Strip& strip, const NormCoefficients& k, const T* x, const T* addend, T* y) {
  const typename V::Floats shift = for_lanes<V>(strip, k.shift), scale = for_lanes<V>(strip, k.scale),
                           offset = for_lanes<V>(strip, k.offset);
  std::int64_t at = strip.first;
  for (std::int64_t i = 0; i < strip.count; ++i, at += strip.step) {
    typename V::Floats value = (V::load(x + at) - shift) * scale + offset;
    if constexpr (kAdd) value += V::load(addend + at);
    if constexpr (kRelu) value = value < 0.f ? typename V::Floats{} : value;  // NaN stays NaN
    V::store(y + at, value);
  }
}

template <typename V, bool kSecond, bool kRelu, bool kStore, typename T>
void gradient_sums_strip(const Strip& strip, const NormGradient<T>& g, const float* shifts, double* sums,
                         double* products) {
  const typename V::Floats shift = for_lanes<V>(strip, shifts);
  const auto total = sum_strip<V, 2>(strip, [&](Sums<V, 2>& s, std::int64_t at) {
    typename V::Floats dz = V::load(g.dy + at);
    if constexpr (kSecond) dz += V::load(g.dy2 + at);
    if constexpr (kRelu) dz = V::load(g.y + at) > 0.f ? dz : typename V::Floats{};
    if constexpr (kStore) V::store(g.dz + at, dz);
    s.of[0] += dz;
    s.of[1] += dz * (V::load(g.x + at) - shift);
  });
  add_lanes<V>(strip, total.of[0], sums);
  add_lanes<V>(strip, total.of[1], products);
}

template <typename V, bool kRelu, typename T>
void normalise_gradient_strip(const Strip& strip, const NormGradientCoefficients& k, const T* dy, const T* x,
                              const T* y, T* dx) {
  const typename V::Floats shift = for_lanes<V>(strip, k.shift), scale = for_lanes<V>(strip, k.scale),
                           slope = for_lanes<V>(strip, k.slope), offset = for_lanes<V>(strip, k.offset);
  std::int64_t at = strip.first;
  for (std::int64_t i = 0; i < strip.count; ++i, at += strip.step) {
    typename V::Floats dz = V::load(dy + at);
    if constexpr (kRelu) dz = V::load(y + at) > 0.f ? dz : typename V::Floats{};
    V::store(dx + at, dz * scale + ((V::load(x + at) - shift) * slope + offset));
  }
}

// Calls body(true_type or false_type), so that the inner loops do not branch on `value`.
template <typename Body>
void with_constant(bool value, const Body& body) {
  value ? body(std::true_type{}) : body(std::false_type{});
}

}  // namespace

void merge_moments(std::int64_t channels, double before, double* mean, double* squares, double count,
                   const double* part_mean, const double* part_squares) {
  if (!(before > 0)) {
    const bool any = count > 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      mean[c] = any ? part_mean[c] : 0;
      squares[c] = any ? part_squares[c] : 0;
    }
    return;
  }
  if (!(count > 0)) return;
  const double weight = count / (before + count), cross = before * weight;
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) {
    const double away = part_mean[c] - mean[c];
    mean[c] += away * weight;
    squares[c] += part_squares[c] + away * away * cross;
  }
}

// Reads each strip twice, the second time from the cache: first for its mean, then for the deviations from the mean.
// Hence a large mean loses no precision.
template <typename T>
void add_moments(const NormPlane& plane, const T* x, double before, double* mean, double* squares) {
  for_strips(plane, kRun<T>, [&](auto lanes, const Strip& strip) {
    using V = decltype(lanes);
    using Floats = typename V::Floats;
    const double values = static_cast<double>(strip.along ? strip.count * V::count : strip.count);
    const auto total = sum_strip<V, 1>(strip, [&](Sums<V, 1>& s, std::int64_t at) { s.of[0] += V::load(x + at); });
    double sum[V::count] = {}, moved[V::count] = {}, part_squares[V::count] = {};
    Floats shift = total.of[0] * static_cast<float>(1 / values);
    if (strip.along) {
      add_lanes<V>(strip, total.of[0], sum);
      shift = Floats{} + static_cast<float>(sum[0] / values);
    }
    const auto around = sum_strip<V, 2>(strip, [&](Sums<V, 2>& s, std::int64_t at) {
      const Floats away = V::load(x + at) - shift;
      s.of[0] += away;
      s.of[1] += away * away;
    });
    const Strip own{0, 0, 0, 0, 0, strip.along};
    add_lanes<V>(own, around.of[0], moved);
    add_lanes<V>(own, around.of[1], part_squares);
    const int channels = strip.along ? 1 : V::count;
    double part_mean[V::count];
    for (int lane = 0; lane < channels; ++lane) {
      const double correction = moved[lane] / values, rest = part_squares[lane] - moved[lane] * correction;
      part_mean[lane] = static_cast<double>(shift[lane]) + correction;
      part_squares[lane] = rest < 0 ? 0 : rest;
    }
    merge_moments(channels, before + static_cast<double>(strip.pixel), mean + strip.channel, squares + strip.channel,
                  values, part_mean, part_squares);
  });
}

template <typename T>
void normalise(const NormPlane& plane, bool relu, const NormCoefficients& coefficients, const T* x, const T* addend,
               T* y) {
  with_constant(relu, [&](auto with_relu) {
    with_constant(addend != nullptr, [&](auto with_addend) {
      for_strips(plane, cached_run<T>(plane, 8), [&](auto lanes, const Strip& strip) {
        normalise_strip<decltype(lanes), with_relu, with_addend>(strip, coefficients, x, addend, y);
      });
    });
  });
}

template <typename T>
void add_gradient_sums(const NormPlane& plane, const NormGradient<T>& at, const float* shift, double* sums,
                       double* products) {
  with_constant(at.dy2 != nullptr, [&](auto second) {
    with_constant(at.y != nullptr, [&](auto relu) {
      with_constant(at.dz != nullptr, [&](auto store) {
        for_strips(plane, std::is_same_v<T, float> ? kRun<T> : cached_run<T>(plane, 32),
                   [&](auto lanes, const Strip& strip) {
                     gradient_sums_strip<decltype(lanes), second, relu, store>(strip, at, shift, sums, products);
                   });
      });
    });
  });
}

template <typename T>
void normalise_gradient(const NormPlane& plane, const NormGradientCoefficients& coefficients, const T* dy, const T* x,
                        const T* y, T* dx) {
  with_constant(y != nullptr, [&](auto relu) {
    for_strips(plane, cached_run<T>(plane, 8), [&](auto lanes, const Strip& strip) {
      normalise_gradient_strip<decltype(lanes), relu>(strip, coefficients, dy, x, y, dx);
    });
  });
}

#define DP_NORM_PLANES(T)                                                                                    \
  template void add_moments(const NormPlane&, const T*, double, double*, double*);                           \
  template void normalise(const NormPlane&, bool, const NormCoefficients&, const T*, const T*, T*);          \
  template void add_gradient_sums(const NormPlane&, const NormGradient<T>&, const float*, double*, double*); \
  template void normalise_gradient(const NormPlane&, const NormGradientCoefficients&, const T*, const T*, const T*, T*);
DP_NORM_PLANES(float)
DP_NORM_PLANES(BFloat16)
#undef DP_NORM_PLANES

}  // namespace dp::kernels
