// Fused layers (kernels/fused/op.h) on every device against their unfused ops on the float64 reference.
#include <cmath>

#include "kernels/op_rig.h"
#include "kernels/step_state.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

constexpr double kFusedTolerance = 1e-5;  // as for convolutions and linear layers

struct Keys {
  explicit Keys(OpRig& rig, std::int64_t rows) : rig_(rig) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < rows; ++i) numbers.push_back(3 * i + 7);
    StepInputs step{};
    step.seed = 5, step.step = 11;
    samples = rig_.upload_bytes(numbers.data(), numbers.size() * sizeof(numbers[0]));
    inputs = rig_.upload_bytes(&step, sizeof step);
  }
  OpRig& rig_;
  std::unique_ptr<Buffer> samples, inputs;
};

TensorDesc mask_of(OpRig& rig, const TensorDesc& y) {
  TensorDesc mask{y.shape, DType::u8, y.layout};
  mask.layout.bytes = y.layout.bytes / rig.context().element_bytes(y.type);
  return mask;
}

// Compares the results of run(rig) on every device with those on the reference.
template <typename Run>
void on_every_device(const Run& run) {
  OpRig oracle(DeviceKind::reference);
  const std::vector<HostTensor> expected = run(oracle);
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    INFO(to_string(Device{kind, 0}));
    const std::vector<HostTensor> actual = run(rig);
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      INFO("result " << i);
      CHECK(relative_error(actual[i], expected[i]) <= kFusedTolerance);
    }
  }
}

}  // namespace

TEST_CASE("a linear layer with its dropout equals the unfused layers") {
  Random random(61, RandomUse::synthetic);
  struct Case {
    Shape x;
    std::int64_t out;
    bool bias, relu;
  };
  for (const Case& c : {Case{{7, 33}, 12, true, true}, Case{{3, 8, 3, 5}, 9, true, true},
                        Case{{5, 2000}, 16, true, true}, Case{{4, 17}, 5, false, false}}) {
    const HostTensor x = random_tensor(c.x, random), b = random_tensor({c.out}, random);
    const HostTensor w = random_tensor({c.out, c.x.without_first().numel()}, random);
    const Shape y{c.x[0], c.out};
    INFO("x " << to_string(c.x) << " out " << c.out);
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const Keys keys(rig, c.x[0]);
      const DropoutSpec dropout{0.4f, 3};
      const auto op = rig.context().make_op(
          LinearDropoutForward{{rig.desc(c.x), rig.desc(w.shape), rig.desc(y), c.bias, c.relu}, dropout});
      const DeviceTensor bias = rig.upload(b, rig.plain_full(b.shape)), result = rig.poisoned(op->tensors()[2]);
      const DeviceTensor from = rig.upload(x, op->tensors()[0]), weights = rig.upload(w, op->tensors()[1]);
      rig.run(*op, {from.data(), weights.data(), c.bias ? bias.data() : nullptr, result.data(), keys.samples->data(),
                    keys.inputs->data()});
      const HostTensor got = rig.download(result);
      std::int64_t zeros = 0;
      for (const double value : got.values) zeros += value == 0;
      CHECK(zeros > 0);
      CHECK(zeros < y.numel());
      return {got};
    });
  }
}

TEST_CASE("a convolution with its pool equals the unfused layers, also with mask and dropout") {
  Random random(62, RandomUse::synthetic);
  struct Case {
    Shape x;
    std::int64_t out;
    Window conv, pool;
    bool conv_relu, pool_relu, training, drops;
  };
  const Window halves{2, 2, 0};
  for (const Case& c :
       {Case{{3, 4, 10, 8}, 6, {3, 1, 0}, halves, false, true, true, true},
        Case{{2, 8, 9, 7}, 40, {3, 1, 1}, halves, true, false, true, false},  // the last row and column are not pooled
        Case{{2, 5, 8, 8}, 12, {3, 2, 1}, halves, false, true, false, false},
        Case{{2, 4, 9, 9}, 8, {3, 1, 0}, {3, 2, 1}, false, true, true, true},
        Case{{1, 1, 8, 8}, 8, {3, 1, 0}, halves, false, true, true, false},
        Case{{5, 4, 13, 13}, 70, {2, 1, 0}, halves, false, true, true, true}}) {
    const Shape y = {c.x[0], c.out, (c.x[2] + 2 * c.conv.padding.h - c.conv.kernel.h) / c.conv.stride.h + 1,
                     (c.x[3] + 2 * c.conv.padding.h - c.conv.kernel.h) / c.conv.stride.h + 1};
    const Shape pooled = {y[0], y[1], (y[2] + 2 * c.pool.padding.h - c.pool.kernel.h) / c.pool.stride.h + 1,
                          (y[3] + 2 * c.pool.padding.h - c.pool.kernel.h) / c.pool.stride.h + 1};
    const HostTensor x = random_tensor(c.x, random), b = random_tensor({c.out}, random);
    const HostTensor w = random_tensor({c.out, c.x[1], c.conv.kernel.h, c.conv.kernel.h}, random);
    const HostTensor dy = random_tensor(pooled, random);
    INFO("x " << to_string(c.x) << " y " << to_string(y) << " pooled " << to_string(pooled));
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const Keys keys(rig, c.x[0]);
      std::optional<DropoutSpec> dropout;
      if (c.drops) dropout = DropoutSpec{0.25f, 4};
      const auto op = rig.context().make_op(
          Conv2dPoolForward{{rig.desc(c.x), rig.desc(w.shape), rig.desc(y), c.conv, true, c.conv_relu},
                            {rig.desc(y), rig.desc(pooled), c.pool, c.pool_relu, c.training, dropout}});
      const TensorDesc result_desc = op->tensors()[3];
      const DeviceTensor bias = rig.upload(b, rig.plain_full(b.shape)), result = rig.poisoned(result_desc);
      const DeviceTensor from = rig.upload(x, op->tensors()[0]), weights = rig.upload(w, op->tensors()[1]);
      const DeviceTensor mask = rig.poisoned(mask_of(rig, result_desc), 0x7F);
      const bool drops = c.training && c.drops;
      rig.run(*op, {from.data(), weights.data(), bias.data(), result.data(), c.training ? mask.data() : nullptr,
                    drops ? keys.samples->data() : nullptr, drops ? keys.inputs->data() : nullptr});
      if (!c.training) return {rig.download(result)};
      // The mask is checked through the gradient that it passes.
      const auto backward =
          rig.context().make_op(MaxPool2dBackward{result_desc, rig.desc(y, op->tensors()[2].layout), c.pool, dropout});
      const DeviceTensor dx = rig.poisoned(backward->tensors()[1]);
      rig.run(*backward, {rig.upload(dy, result_desc).data(), mask.data(), dx.data()});
      return {rig.download(result), rig.download(dx)};
    });
  }
}

TEST_CASE("a NaN passes a convolution with its pool") {
  const Shape shape{1, 4, 6, 6}, y{1, 8, 4, 4}, pooled{1, 8, 2, 2};
  Random random(63, RandomUse::synthetic);
  HostTensor x = random_tensor(shape, random);
  const HostTensor w = random_tensor({8, 4, 3, 3}, random);
  x.values[7] = std::nan("");  // in the windows of the first pooled cell only
  for (const DeviceKind kind : tested_kinds()) {
    OpRig rig(kind);
    INFO(to_string(Device{kind, 0}));
    const auto op = rig.context().make_op(
        Conv2dPoolForward{{rig.desc(shape), rig.desc(w.shape), rig.desc(y), {3, 1, 0}, false, false},
                          {rig.desc(y), rig.desc(pooled), {2, 2, 0}, true, false, {}}});
    const DeviceTensor result = rig.poisoned(op->tensors()[3], 0);
    rig.run(*op, {rig.upload(x, op->tensors()[0]).data(), rig.upload(w, op->tensors()[1]).data(), nullptr,
                  result.data(), nullptr, nullptr, nullptr});
    const HostTensor got = rig.download(result);
    for (std::int64_t i = 0; i < pooled.numel(); ++i) CHECK(std::isnan(got.values[i]) == (i % 4 == 0));
  }
}

TEST_CASE("a data gradient with ReLU's mask equals the unfused ops") {
  Random random(64, RandomUse::synthetic);
  struct Case {
    Shape x;
    std::int64_t out;
    Window window;
  };
  for (const Case& c :
       {Case{{3, 5, 7, 9}, 11, {3, 1, 1}}, Case{{2, 8, 9, 9}, 70, {3, 2, 1}}, Case{{4, 64, 6, 6}, 32, {1, 1, 0}}}) {
    const Shape y = {c.x[0], c.out, (c.x[2] + 2 * c.window.padding.h - c.window.kernel.h) / c.window.stride.h + 1,
                     (c.x[3] + 2 * c.window.padding.h - c.window.kernel.h) / c.window.stride.h + 1};
    const HostTensor x = random_tensor(c.x, random), dy = random_tensor(y, random);
    const HostTensor w = random_tensor({c.out, c.x[1], c.window.kernel.h, c.window.kernel.h}, random);
    INFO("x " << to_string(c.x) << " y " << to_string(y));
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const auto op =
          rig.context().make_op(Conv2dReluBackwardData{{rig.desc(y), rig.desc(w.shape), rig.desc(c.x), c.window}});
      const DeviceTensor from = rig.upload(x, op->tensors()[2]), dx = rig.poisoned(op->tensors()[2]);
      rig.run(*op, {rig.upload(dy, op->tensors()[0]).data(), rig.upload(w, op->tensors()[1]).data(), from.data(),
                    dx.data()});
      const HostTensor got = rig.download(dx);
      for (std::size_t i = 0; i < x.values.size(); ++i)
        if (x.values[i] <= 0) REQUIRE(got.values[i] == 0);
      return {got};
    });
  }
}

TEST_CASE("a linear layer's data gradient with the pool's equals the unfused ops") {
  Random random(65, RandomUse::synthetic);
  struct Case {
    Shape pooled, large;
    Window window;
    bool drops;
  };
  for (const Case& c :
       {Case{{3, 6, 4, 5}, {3, 6, 8, 10}, {2, 2, 0}, true}, Case{{2, 40, 3, 3}, {2, 40, 6, 6}, {2, 2, 0}, false},
        Case{{2, 8, 3, 3}, {2, 8, 7, 7}, {2, 2, 0}, false}, Case{{2, 5, 4, 4}, {2, 5, 7, 7}, {3, 2, 1}, true}}) {
    const std::int64_t out = 13;
    const HostTensor x = distinct_tensor(c.large, random), dy = random_tensor({c.pooled[0], out}, random);
    const HostTensor w = random_tensor({out, c.pooled.without_first().numel()}, random);
    INFO("pooled " << to_string(c.pooled) << " of " << to_string(c.large));
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const Keys keys(rig, c.pooled[0]);
      std::optional<DropoutSpec> dropout;
      if (c.drops) dropout = DropoutSpec{0.25f, 4};
      const auto pool = rig.context().make_op(MaxPool2dForward{rig.desc(c.large, rig.preferred(c.large)),
                                                               rig.desc(c.pooled), c.window, true, true, dropout});
      const TensorDesc large = pool->tensors()[0], pooled = pool->tensors()[1];
      const DeviceTensor y = rig.poisoned(pooled), mask = rig.poisoned(mask_of(rig, pooled), 0x7F);
      rig.run(*pool, {rig.upload(x, large).data(), y.data(), mask.data(), c.drops ? keys.samples->data() : nullptr,
                      c.drops ? keys.inputs->data() : nullptr});
      const auto op = rig.context().make_op(
          LinearPoolBackwardData{{rig.desc(dy.shape), rig.desc(w.shape), pooled}, {pooled, large, c.window, dropout}});
      const DeviceTensor dx = rig.poisoned(op->tensors()[3]);
      rig.run(*op, {rig.upload(dy, op->tensors()[0]).data(), rig.upload(w, op->tensors()[1]).data(), mask.data(),
                    dx.data()});
      return {rig.download(dx)};
    });
  }
}

TEST_CASE("the fused gradients of a linear layer equal the unfused ops, with ReLU's mask and dropout's scale") {
  Random random(66, RandomUse::synthetic);
  struct Case {
    std::int64_t rows, features, out;
    bool bias;
    float scale;
  };
  for (const Case& c : {Case{64, 128, 10, true, 2}, Case{1, 1, 1, true, 1}, Case{7, 45, 32, false, 1.25f},
                        Case{257, 40, 10, true, 1}, Case{33, 70, 33, true, 2}}) {
    const HostTensor x = random_tensor({c.rows, c.features}, random), dy = random_tensor({c.rows, c.out}, random);
    const HostTensor w = random_tensor({c.out, c.features}, random);
    INFO(c.rows << " rows, " << c.features << " features, " << c.out << " outputs");
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const TensorDesc xd = rig.desc(x.shape, rig.plain(x.shape)), dyd = rig.desc(dy.shape, rig.plain(dy.shape));
      const auto op = rig.context().make_op(
          LinearReluBackward{{xd, dyd, rig.full(w.shape), c.bias}, {dyd, rig.desc(w.shape), xd}, c.scale});
      const std::vector<TensorDesc> tensors = op->tensors();
      const DeviceTensor dw = rig.poisoned(tensors[2]), dx = rig.poisoned(tensors[4]);
      std::optional<DeviceTensor> db;
      if (c.bias) db = rig.poisoned(rig.plain_full({c.out}));
      rig.run(*op, {rig.upload(x, tensors[0]).data(), rig.upload(dy, tensors[1]).data(),
                    rig.upload(w, tensors[3]).data(), dw.data(), data_or_null(db), dx.data()});
      std::vector<HostTensor> results{rig.download(dw), rig.download(dx)};
      if (db) results.push_back(rig.download(*db));
      return results;
    });
  }
}

TEST_CASE("a linear layer with the loss of its logits equals the unfused ops, also for non-finite samples") {
  Random random(67, RandomUse::synthetic);
  struct Case {
    std::int64_t rows, features, classes;
    bool bias, gradient;
    float smoothing = 0;
    bool nan = false;
  };
  for (const Case& c : {Case{64, 128, 10, true, true}, Case{1, 1, 2, true, true}, Case{7, 33, 5, false, true, 0.1f},
                        Case{9, 45, 12, true, false, 0.1f}, Case{65, 800, 10, true, true},
                        Case{3, 900, 10, true, true},  // more weights than one kernel supports
                        Case{7, 33, 5, true, true, 0, true}}) {
    HostTensor x = random_tensor({c.rows, c.features}, random);
    const HostTensor w = random_tensor({c.classes, c.features}, random), b = random_tensor({c.classes}, random);
    if (c.nan) x.values[static_cast<std::size_t>(3 * c.features)] = std::nan("");
    std::vector<std::int32_t> labels;
    for (std::int64_t i = 0; i < c.rows; ++i) labels.push_back(static_cast<std::int32_t>(i * 7 % c.classes));
    StepInputs step{};
    step.loss_scale = 0.25f, step.label_smoothing = c.smoothing;
    INFO(c.rows << " rows, " << c.features << " features, " << c.classes << " classes");
    on_every_device([&](OpRig& rig) -> std::vector<HostTensor> {
      const Shape y{c.rows, c.classes};
      const auto op = rig.context().make_op(
          LinearLoss{{rig.desc(x.shape), rig.desc(w.shape), rig.plain_full(y), c.bias, false}, {c.rows, c.classes}});
      const std::vector<TensorDesc> tensors = op->tensors();
      const DeviceTensor bias = rig.upload(b, rig.plain_full(b.shape)), logits = rig.poisoned(tensors[2]),
                         dlogits = rig.poisoned(tensors[2]);
      const StepResults before{.loss_sum = 2, .samples = 3};
      const auto inputs = rig.upload_bytes(&step, sizeof step), sums = rig.upload_bytes(&before, sizeof before);
      const auto of_labels = rig.upload_bytes(labels.data(), labels.size() * sizeof(labels[0]));
      rig.run(*op, {rig.upload(x, tensors[0]).data(), rig.upload(w, tensors[1]).data(), c.bias ? bias.data() : nullptr,
                    logits.data(), of_labels->data(), inputs->data(), c.gradient ? dlogits.data() : nullptr,
                    sums->data(), nullptr});
      StepResults after;
      rig.download_bytes(&after, *sums, sizeof after);
      HostTensor counted{{5},
                         {after.loss_sum, static_cast<double>(after.samples), static_cast<double>(after.top1),
                          static_cast<double>(after.top5), static_cast<double>(after.nonfinite)}};
      CHECK(after.nonfinite == (c.nan ? 1 : 0));
      CHECK(after.samples + after.nonfinite == c.rows + 3);
      std::vector<HostTensor> results{rig.download(logits)};
      if (c.gradient) results.push_back(rig.download(dlogits));
      for (HostTensor& result : results)
        for (std::int64_t i = 0; c.nan && i < c.classes; ++i) {
          double& value = result.values[static_cast<std::size_t>(3 * c.classes + i)];
          CHECK((std::isnan(value) || value == 0));
          value = 0;
        }
      results.push_back(std::move(counted));
      return results;
    });
  }
}
