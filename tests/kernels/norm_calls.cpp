#include "kernels/norm_calls.h"

#include <limits>

#include "support/catch.h"

namespace dp::test {
namespace {

using namespace dp::kernels;

std::unique_ptr<Buffer> upload_doubles(OpRig& rig, const Doubles& values) {
  return rig.upload_bytes(values.data(), values.size() * sizeof(double));
}
Doubles download_doubles(OpRig& rig, const Buffer& memory, std::size_t count) {
  Doubles values(count);
  rig.download_bytes(values.data(), memory, count * sizeof(double));
  return values;
}
std::unique_ptr<Buffer> poisoned_doubles(OpRig& rig, std::size_t count) {
  return upload_doubles(rig, Doubles(count, std::numeric_limits<double>::quiet_NaN()));
}
DeviceTensor poisoned_plain(OpRig& rig, const Shape& shape) { return rig.poisoned(rig.plain_full(shape)); }

std::size_t of_channels(const HostTensor& x) { return static_cast<std::size_t>(2 * x.shape[1]); }

}  // namespace

Doubles batch_norm_moments(OpRig& rig, const HostTensor& x, const Layout& layout, std::optional<double> eps,
                           Doubles* stats_of_part) {
  const auto op = rig.context().make_op(BatchNormMoments{rig.desc(x.shape, layout), eps});
  const std::size_t count = 1 + of_channels(x);
  const auto moments = poisoned_doubles(rig, count), stats = poisoned_doubles(rig, count);
  rig.run(*op, {rig.upload(x, op->tensors()[0]).data(), moments->data(), eps ? stats->data() : nullptr});
  if (eps) *stats_of_part = download_doubles(rig, *stats, count);
  return download_doubles(rig, *moments, count);
}

Doubles batch_norm_merge(OpRig& rig, const NormMerge& merge, const Doubles& moments, HostTensor* mean,
                         HostTensor* variance, bool stats) {
  const std::size_t count = 1 + 2 * static_cast<std::size_t>(merge.channels);
  REQUIRE(moments.size() == count * static_cast<std::size_t>(merge.parts));
  if (mean) {
    NormRunning running{merge.momentum, moments, mean, variance};
    batch_norm_track(rig, {&running, 1}, merge.parts);
  }
  if (!stats) return {};
  const auto op = rig.context().make_op(BatchNormMerge{merge.channels, merge.parts, merge.eps});
  const auto parts = upload_doubles(rig, moments), result = poisoned_doubles(rig, count);
  rig.run(*op, {parts->data(), result->data()});
  return download_doubles(rig, *result, count);
}

void batch_norm_track(OpRig& rig, std::span<const NormRunning> norms, int parts) {
  BatchNormTrack track{.parts = parts};
  Doubles moments;
  HostTensor values{{0}, {}};
  for (const NormRunning& norm : norms) {
    const auto at = static_cast<std::int64_t>(values.values.size());
    const std::int64_t channels = norm.mean->shape.numel();
    track.norms.push_back(
        {channels, norm.momentum, static_cast<std::int64_t>(moments.size()), at + channels, at});  // the variance first
    moments.insert(moments.end(), norm.moments.begin(), norm.moments.end());
    for (const HostTensor* const own : {norm.variance, norm.mean})
      values.values.insert(values.values.end(), own->values.begin(), own->values.end());
  }
  values.shape = {static_cast<std::int64_t>(values.values.size())};
  const auto op = rig.context().make_op(track);
  const DeviceTensor running = upload_plain(rig, values);
  rig.run(*op, {upload_doubles(rig, moments)->data(), running.data()});
  const Doubles updated = rig.download(running).values;
  auto next = updated.begin();
  for (const NormRunning& norm : norms)
    for (HostTensor* const own : {norm.variance, norm.mean}) {
      std::copy_n(next, own->values.size(), own->values.begin());
      next += static_cast<std::ptrdiff_t>(own->values.size());
    }
}

Doubles batch_norm_running(OpRig& rig, const HostTensor& mean, const HostTensor& variance, double eps) {
  const std::int64_t channels = mean.shape.numel();
  const auto op = rig.context().make_op(BatchNormRunning{channels, eps});
  const std::size_t count = 1 + 2 * static_cast<std::size_t>(channels);
  const auto stats = poisoned_doubles(rig, count);
  rig.run(*op, {upload_plain(rig, mean).data(), upload_plain(rig, variance).data(), stats->data()});
  return download_doubles(rig, *stats, count);
}

HostTensor batch_norm_forward(OpRig& rig, const HostTensor& x, const Doubles& stats, const HostTensor& weight,
                              const HostTensor& bias, const HostTensor* addend, bool relu, const Layout& layout) {
  const auto op = rig.context().make_op(BatchNormForward{rig.desc(x.shape, layout), relu, addend != nullptr});
  const TensorDesc desc = op->tensors()[0];
  std::optional<DeviceTensor> added, scale, offset;
  if (addend) added = rig.upload(*addend, desc);
  if (!weight.values.empty()) scale = upload_plain(rig, weight), offset = upload_plain(rig, bias);
  const DeviceTensor y = rig.poisoned(desc);
  rig.run(*op, {rig.upload(x, desc).data(), upload_doubles(rig, stats)->data(), data_or_null(scale),
                data_or_null(offset), data_or_null(added), y.data()});
  return rig.download(y);
}

NormSums batch_norm_backward_sums(OpRig& rig, const HostTensor& dy, const HostTensor* dy2, const HostTensor& x,
                                  const HostTensor* y, const Doubles& stats, Dz dz, const Layout& layout, bool affine) {
  const auto op = rig.context().make_op(BatchNormBackwardSums{rig.desc(x.shape, layout), y != nullptr});
  const TensorDesc desc = op->tensors()[0];
  const DeviceTensor first = rig.upload(dy, desc), own = rig.poisoned(desc);
  std::optional<DeviceTensor> second, out;
  if (dy2) second = rig.upload(*dy2, desc);
  if (y) out = rig.upload(*y, desc);
  const DeviceTensor& to = dz == Dz::over_dy ? first : dz == Dz::over_dy2 ? *second : own;
  const Shape channels{x.shape[1]};
  const DeviceTensor dweight = poisoned_plain(rig, channels), dbias = poisoned_plain(rig, channels);
  const auto sums = poisoned_doubles(rig, of_channels(x));
  rig.run(*op,
          {first.data(), second ? second->data() : nullptr, rig.upload(x, desc).data(), out ? out->data() : nullptr,
           upload_doubles(rig, stats)->data(), sums->data(), affine ? dweight.data() : nullptr,
           affine ? dbias.data() : nullptr, dz == Dz::nowhere ? nullptr : to.data()});
  NormSums result{download_doubles(rig, *sums, of_channels(x)), {}, {}, {}};
  if (affine) result.dweight = rig.download(dweight), result.dbias = rig.download(dbias);
  if (dz != Dz::nowhere) result.dz = rig.download(to);
  return result;
}

HostTensor batch_norm_backward(OpRig& rig, const HostTensor& dz, const HostTensor& x, const HostTensor* y,
                               const Doubles& stats, const HostTensor& weight, const Doubles& sums, bool in_place,
                               const Layout& layout) {
  const int parts = static_cast<int>(sums.size() / of_channels(x));
  const auto op = rig.context().make_op(BatchNormBackward{rig.desc(x.shape, layout), parts, y != nullptr});
  const TensorDesc desc = op->tensors()[0];
  const DeviceTensor gradient = rig.upload(dz, desc), dx = in_place ? gradient : rig.poisoned(desc);
  std::optional<DeviceTensor> out, scale;
  if (y) out = rig.upload(*y, desc);
  if (!weight.values.empty()) scale = upload_plain(rig, weight);
  rig.run(*op, {gradient.data(), rig.upload(x, desc).data(), out ? out->data() : nullptr,
                upload_doubles(rig, stats)->data(), data_or_null(scale), upload_doubles(rig, sums)->data(), dx.data()});
  return rig.download(dx);
}

NormResult batch_norm(OpRig& rig, const NormCase& norm, const std::vector<std::int64_t>& parts, bool preferred) {
  const std::int64_t channels = norm.x.shape[1];
  const auto layout = [&](std::int64_t samples) {
    const Shape shape = norm.x.shape.with_dim(0, samples);
    return preferred ? rig.preferred(shape) : rig.plain(shape);
  };
  const auto each_part = [&](const auto& body) {
    std::int64_t begin = 0;
    for (const std::int64_t samples : parts) {
      body(begin, begin + samples, layout(samples));
      begin += samples;
    }
    REQUIRE(begin == norm.x.shape[0]);
  };
  const auto slice = [](const std::optional<HostTensor>& t, std::int64_t begin, std::int64_t end) {
    return t ? std::optional(rows(*t, begin, end)) : std::nullopt;
  };
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  const auto or_null = [](const std::optional<HostTensor>& t) { return t ? &*t : nullptr; };

  Doubles moments, sums;
  NormResult result{
      {}, {}, {norm.x.shape, {}}, {norm.x.shape, {}}, {norm.x.shape, {}}, zeros({channels}), zeros({channels})};
  each_part([&](std::int64_t begin, std::int64_t end, const Layout& lies) {
    append(moments, batch_norm_moments(rig, rows(norm.x, begin, end), lies));
  });
  // Momentum 1: the running values become the batch's, with the unbiased variance.
  HostTensor mean = zeros({channels}), variance = zeros({channels});
  const Doubles stats =
      batch_norm_merge(rig, {channels, static_cast<int>(parts.size()), norm.eps, 1.0}, moments, &mean, &variance);
  result.mean = mean.values;
  for (std::int64_t c = 0; c < channels; ++c) {
    const double inv_std = stats[static_cast<std::size_t>(1 + channels + c)];
    result.variance.push_back(1 / (inv_std * inv_std) - norm.eps);
  }
  each_part([&](std::int64_t begin, std::int64_t end, const Layout& lies) {
    const auto addend = slice(norm.addend, begin, end), dy2 = slice(norm.dy2, begin, end);
    const HostTensor x = rows(norm.x, begin, end);
    const HostTensor y = batch_norm_forward(rig, x, stats, norm.weight, norm.bias, or_null(addend), norm.relu, lies);
    append(result.y.values, y.values);
    const NormSums part = batch_norm_backward_sums(rig, rows(norm.dy, begin, end), or_null(dy2), x,
                                                   norm.relu ? &y : nullptr, stats, Dz::own, lies);
    append(sums, part.sums);
    append(result.dz.values, part.dz.values);
    for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
      result.dweight.values[c] += part.dweight.values[c];
      result.dbias.values[c] += part.dbias.values[c];
    }
  });
  each_part([&](std::int64_t begin, std::int64_t end, const Layout& lies) {
    append(result.dx.values, batch_norm_backward(rig, rows(result.dz, begin, end), rows(norm.x, begin, end), nullptr,
                                                 stats, norm.weight, sums, false, lies)
                                 .values);
  });
  return result;
}

GroupNormResult group_norm(OpRig& rig, const GroupNormCase& norm, bool preferred, bool in_place) {
  const Shape& shape = norm.x.shape;
  const TensorDesc given = rig.desc(shape, preferred ? rig.preferred(shape) : rig.plain(shape));
  const auto forward = rig.context().make_op(GroupNormForward{given, norm.groups, norm.eps, norm.affine, norm.relu});
  const TensorDesc desc = forward->tensors()[0];
  const auto count = static_cast<std::size_t>(2 * shape[0] * groups_of(shape, norm.groups));
  const DeviceTensor x = rig.upload(norm.x, desc), y = rig.poisoned(desc);
  const auto stats = poisoned_doubles(rig, count);
  std::optional<DeviceTensor> weight, bias, dweight, dbias;
  if (norm.affine) {
    weight = upload_plain(rig, norm.weight), bias = upload_plain(rig, norm.bias);
    dweight = poisoned_plain(rig, norm.weight.shape), dbias = poisoned_plain(rig, norm.bias.shape);
  }
  const auto data = [](const std::optional<DeviceTensor>& tensor) { return tensor ? tensor->data() : nullptr; };
  rig.run(*forward, {x.data(), data(weight), data(bias), y.data(), stats->data()});
  const auto backward = rig.context().make_op(GroupNormBackward{desc, norm.groups, norm.affine});
  const DeviceTensor dy = rig.upload(norm.dy, desc), dx = in_place ? dy : rig.poisoned(desc);
  rig.run(*backward, {dy.data(), x.data(), data(weight), stats->data(), dx.data(), data(dweight), data(dbias)});
  GroupNormResult result{download_doubles(rig, *stats, count), rig.download(y), rig.download(dx), {}, {}};
  if (norm.affine) result.dweight = rig.download(*dweight), result.dbias = rig.download(*dbias);
  return result;
}

NormResult naive_batch_norm(const NormCase& norm) {
  const std::int64_t samples = norm.x.shape[0], channels = norm.x.shape[1], pixels = norm.x.shape[2] * norm.x.shape[3];
  const double count = static_cast<double>(samples * pixels);
  NormResult r{
      {}, {}, zeros(norm.x.shape), zeros(norm.x.shape), zeros(norm.x.shape), zeros({channels}), zeros({channels})};
  for (std::int64_t c = 0; c < channels; ++c) {
    std::vector<std::size_t> own;
    for (std::int64_t n = 0; n < samples; ++n)
      for (std::int64_t p = 0; p < pixels; ++p)
        own.push_back(static_cast<std::size_t>((n * channels + c) * pixels + p));
    const auto at = static_cast<std::size_t>(c);
    double mean = 0, variance = 0, dot_hat = 0, sum = 0;
    for (const std::size_t i : own) mean += norm.x.values[i] / count;
    for (const std::size_t i : own) variance += (norm.x.values[i] - mean) * (norm.x.values[i] - mean) / count;
    const double deviation = std::sqrt(variance + norm.eps);
    for (const std::size_t i : own) {
      const double hat = (norm.x.values[i] - mean) / deviation;
      double y = hat * norm.weight.values[at] + norm.bias.values[at];
      if (norm.addend) y += norm.addend->values[i];
      const double dy = norm.dy.values[i] + (norm.dy2 ? norm.dy2->values[i] : 0);
      r.y.values[i] = norm.relu ? std::max(0.0, y) : y;
      r.dz.values[i] = norm.relu && y <= 0 ? 0 : dy;
      sum += r.dz.values[i];
      dot_hat += r.dz.values[i] * hat;
    }
    for (const std::size_t i : own) {
      const double hat = (norm.x.values[i] - mean) / deviation;
      r.dx.values[i] = norm.weight.values[at] / deviation * (r.dz.values[i] - sum / count - hat * dot_hat / count);
    }
    r.mean.push_back(mean), r.variance.push_back(variance);
    r.dbias.values[at] = sum, r.dweight.values[at] = dot_hat;
  }
  return r;
}

NormCase random_norm(const Shape& shape, bool relu, bool add, bool second, Random& random) {
  const Shape channels{shape[1]};
  NormCase norm{.x = random_tensor(shape, random),
                .weight = random_tensor(channels, random),
                .bias = random_tensor(channels, random),
                .dy = random_tensor(shape, random),
                .relu = relu};
  if (add) norm.addend = random_tensor(shape, random);
  if (second) norm.dy2 = random_tensor(shape, random);
  return norm;
}

HostTensor rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::int64_t row = tensor.shape.without_first().numel();
  return {tensor.shape.with_dim(0, end - begin),
          Doubles(tensor.values.begin() + begin * row, tensor.values.begin() + end * row)};
}

}  // namespace dp::test
