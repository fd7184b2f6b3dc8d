// The layers of residual networks against PyTorch in float64.
#include "golden/golden_cases.h"
#include "kernels/layer_calls.h"
#include "kernels/norm_calls.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::test;

const GoldenFile& golden() {
  static const GoldenFile file("residual_layers.safetensors");
  return file;
}

// Checks |actual - golden| / |golden| against the device's tolerance.
void check(OpRig& rig, const HostTensor& actual, const std::string& name) {
  INFO(name);
  CHECK(relative_error(actual, golden().values(name)) <= golden_tolerance(rig.kind(), name));
}

NormCase norm_of(const std::string& prefix) {
  NormCase norm;
  norm.x = golden().values(prefix + "x");
  norm.weight = golden().values(prefix + "w");
  norm.bias = golden().values(prefix + "b");
  norm.dy = golden().values(prefix + "dy");
  return norm;
}

// Element i of the first dimension; drops that dimension.
HostTensor slice(const HostTensor& tensor, std::int64_t i) {
  const HostTensor one = rows(tensor, i, i + 1);
  return {tensor.shape.without_first(), one.values};
}

// Checks three batches: the final running statistics, and the last batch's output, gradients and evaluation.
void check_batch_norm(OpRig& rig, const std::string& prefix, bool preferred) {
  NormCase norm = norm_of(prefix);
  const HostTensor batches = norm.x;
  const std::vector<double> settings = golden().values(prefix + "settings").values;
  norm.eps = settings[0];
  HostTensor mean = golden().values(prefix + "mean"), variance = golden().values(prefix + "variance");
  norm.x = slice(batches, 0);
  const kernels::Layout layout = preferred ? rig.preferred(norm.x.shape) : rig.plain(norm.x.shape);
  for (std::int64_t step = 0; step < batches.shape[0]; ++step) {
    norm.x = slice(batches, step);
    batch_norm_merge(rig, {norm.x.shape[1], 1, norm.eps, settings[1]}, batch_norm_moments(rig, norm.x, layout), &mean,
                     &variance);
  }
  check(rig, mean, prefix + "new_mean");
  check(rig, variance, prefix + "new_variance");
  const NormResult result = batch_norm(rig, norm, {norm.x.shape[0]}, preferred);
  check(rig, result.y, prefix + "y");
  check(rig, result.dx, prefix + "dx");
  check(rig, result.dweight, prefix + "dw");
  check(rig, result.dbias, prefix + "db");
  const Doubles stats = batch_norm_running(rig, mean, variance, norm.eps);
  check(rig, batch_norm_forward(rig, norm.x, stats, norm.weight, norm.bias, nullptr, false, layout),
        prefix + "evaluated");
}

}  // namespace

TEST_CASE("batch_norm2d equals torch.nn.functional.batch_norm in training and evaluation") {
  for_each_case(golden(), "batch_norm", 5, [](OpRig& rig, const std::string& prefix) {
    for (const bool preferred : {false, true}) check_batch_norm(rig, prefix, preferred);
  });
}

TEST_CASE("batch_norm2d with an addend and a ReLU equals PyTorch's three calls, forward and backward") {
  for_each_case(golden(), "norm_add_relu", 2, [](OpRig& rig, const std::string& prefix) {
    NormCase norm = norm_of(prefix);
    norm.addend = golden().values(prefix + "addend");
    norm.relu = true;
    for (const bool preferred : {false, true}) {
      const NormResult result = batch_norm(rig, norm, {norm.x.shape[0]}, preferred);
      check(rig, result.y, prefix + "y");
      check(rig, result.dx, prefix + "dx");
      check(rig, result.dz, prefix + "daddend");
      check(rig, result.dweight, prefix + "dw");
      check(rig, result.dbias, prefix + "db");
    }
  });
}

TEST_CASE("group_norm and instance_norm2d equal torch.nn.functional.group_norm and instance_norm") {
  for_each_case(golden(), "group_norm", 6, [](OpRig& rig, const std::string& prefix) {
    const std::vector<double> settings = golden().values(prefix + "settings").values;
    GroupNormCase norm{
        .groups = static_cast<std::int64_t>(settings[0]), .affine = settings[2] != 0, .eps = settings[1]};
    norm.x = golden().values(prefix + "x");
    norm.weight = golden().values(prefix + "w");
    norm.bias = golden().values(prefix + "b");
    norm.dy = golden().values(prefix + "dy");
    for (const bool preferred : {false, true}) {
      const GroupNormResult result = group_norm(rig, norm, preferred);
      check(rig, result.y, prefix + "y");
      check(rig, result.dx, prefix + "dx");
      if (!norm.affine) continue;
      check(rig, result.dweight, prefix + "dw");
      check(rig, result.dbias, prefix + "db");
    }
  });
}

TEST_CASE("avg_pool2d equals torch.nn.functional.avg_pool2d and adaptive_avg_pool2d, forward and backward") {
  for_each_case(golden(), "avg_pool2d", 6, [](OpRig& rig, const std::string& prefix) {
    const kernels::Window window = window_of(golden(), prefix);
    const HostTensor x = golden().values(prefix + "x"), dy = golden().values(prefix + "dy");
    for (const Layouts layouts : kLayouts) {
      const LayerResult result = avg_pool2d(rig, x, dy, window.kernel.h == 0 ? nullptr : &window, layouts);
      check(rig, result.y, prefix + "y");
      check(rig, result.dx, prefix + "dx");
    }
  });
}

TEST_CASE("an addition, with a ReLU and without, equals PyTorch's") {
  for_each_case(golden(), "add", 2, [](OpRig& rig, const std::string& prefix) {
    const HostTensor a = golden().values(prefix + "x"), b = golden().values(prefix + "addend");
    for (const kernels::Layout& layout : {rig.plain(a.shape), rig.preferred(a.shape)}) {
      check(rig, add(rig, a, b, false, layout, false), prefix + "y");
      check(rig, add(rig, a, b, true, layout, false), prefix + "rectified");
    }
  });
}

TEST_CASE("a product broadcasts as PyTorch's, forward and backward") {
  for_each_case(golden(), "multiply", 4, [](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden().values(prefix + "x"), s = golden().values(prefix + "s"),
                     dy = golden().values(prefix + "dy");
    const kernels::Layout plain = rig.plain(x.shape), other = x.shape.rank() == 4 ? rig.preferred(x.shape) : plain;
    for (const kernels::Layout& layout : {plain, other}) {
      const Products result = multiply(rig, x, s, dy, layout, false);
      check(rig, result.y, prefix + "y");
      check(rig, result.dx, prefix + "dx");
      check(rig, result.ds, prefix + "ds");
    }
  });
}

TEST_CASE("copies of channels make torch.cat and slices, forward and backward") {
  for_each_case(golden(), "concat", 2, [](OpRig& rig, const std::string& prefix) {
    const HostTensor a = golden().values(prefix + "a"), b = golden().values(prefix + "b"),
                     dy = golden().values(prefix + "dy");
    const std::vector<double> channels = golden().values(prefix + "channels").values;
    const auto begin = static_cast<std::int64_t>(channels[0]), count = static_cast<std::int64_t>(channels[1]) - begin;
    const auto copy = [&](const HostTensor& from, const HostTensor& to, const Channels& which) {
      return copy_channels(rig, from, to, which, {}, {});
    };
    const std::int64_t first = a.shape[1], second = b.shape[1];
    HostTensor y = zeros(a.shape.without_first().without_first().prepended(first + second).prepended(a.shape[0]));
    y = copy(b, copy(a, y, {0, 0, first}), {0, first, second});
    check(rig, y, prefix + "y");
    check(rig, copy(y, zeros(dy.shape), {begin, 0, count}), prefix + "part");
    const HostTensor gradient = copy(dy, zeros(y.shape), {0, begin, count});
    check(rig, copy(gradient, zeros(a.shape), {0, 0, first}), prefix + "da");
    check(rig, copy(gradient, zeros(b.shape), {first, 0, second}), prefix + "db");
  });
}

TEST_CASE("strided and 1x1 convolutions without a bias equal torch.nn.functional.conv2d, forward and backward") {
  for_each_case(golden(), "conv2d", 4, [](OpRig& rig, const std::string& prefix) {
    const HostTensor x = golden().values(prefix + "x"), w = golden().values(prefix + "w");
    const HostTensor dy = golden().values(prefix + "dy");
    for (const Layouts layouts : kLayouts) {
      const LayerResult result = conv2d(rig, x, w, nullptr, dy, window_of(golden(), prefix), false, layouts);
      check(rig, result.y, prefix + "y");
      check(rig, result.dx, prefix + "dx");
      check(rig, result.dw, prefix + "dw");
    }
  });
}
