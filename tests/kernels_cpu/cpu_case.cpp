#include "kernels_cpu/cpu_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "dp/random.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels_cpu/tagged.h"

namespace dp::test {
namespace {

using namespace kernels;

constexpr std::int64_t kBatch = 6;

Tensor random_memory(std::size_t bytes) {
  Tensor t(Shape{static_cast<std::int64_t>((bytes + 3) / 4)});
  Random random(bytes, RandomUse::synthetic);
  for (float& value : t.span<float>()) value = random.uniform(-1, 1);
  return t;
}
Tensor zeroed(std::size_t bytes) { return Tensor(Shape{static_cast<std::int64_t>(bytes)}, DType::u8); }

Tensor step_memory() {
  Tensor t = zeroed(sizeof(StepInputs));
  new (t.raw()) StepInputs{.seed = 11,
                           .step = 5,
                           .loss_scale = 0.25f,
                           .label_smoothing = 0.1f,
                           .max_norm = 0.5f,
                           .update = {.groups = {{.lr = 0.1f, .weight_decay = 0.01f}},
                                      .options = RuleOptions::of(Sgd{.momentum = 0.9f, .nesterov = true})},
                           .average_share = 0.1};
  return t;
}
Tensor results_memory() {
  Tensor t = zeroed(sizeof(StepResults));
  new (t.raw()) StepResults{};
  return t;
}
Tensor samples_memory() {
  Tensor t(Shape{kBatch}, DType::i64);
  for (std::int64_t i = 0; i < kBatch; ++i) t.data<std::int64_t>()[i] = i * 1000 + 7;
  return t;
}
Tensor labels_memory(std::int64_t batch, std::int32_t classes) {
  Tensor t(Shape{batch}, DType::i32);
  for (std::int64_t i = 0; i < batch; ++i) t.data<std::int32_t>()[i] = static_cast<std::int32_t>(i) % classes;
  return t;
}

// Stats with scales around 1 and means around 0.
Tensor stats_memory(std::int64_t channels, double count) {
  Tensor t(Shape{1 + 2 * channels}, DType::f64);
  t.data<double>()[0] = count;
  for (std::int64_t c = 0; c < channels; ++c) {
    t.data<double>()[1 + c] = 0.01 * static_cast<double>(c);
    t.data<double>()[1 + channels + c] = 1 + 0.1 * static_cast<double>(c);
  }
  return t;
}

class Cases {
 public:
  explicit Cases(int threads) : options_{threads, false} {}

  HostOp& add(const OpDesc& desc, std::vector<std::size_t> outputs, bool exact, std::vector<Tensor> memory) {
    CpuCase c{name_of(desc), make_cpu_op(desc, options_), std::move(memory), std::move(outputs), exact, {}, {}};
    c.workspace = zeroed(c.op->workspace_bytes() + 64);
    for (Tensor& t : c.memory) c.args.push_back(t.empty() ? nullptr : t.raw());
    cases.push_back(std::move(c));
    return *cases.back().op;
  }
  // An op with its tensors as arguments, in order. If channels > 0, a bias is inserted at index `bias_at`.
  HostOp& product(const OpDesc& desc, std::size_t bias_at, std::int64_t channels, std::vector<std::size_t> outputs) {
    const auto tensors = make_cpu_op(desc, options_)->tensors();
    std::vector<Tensor> memory;
    for (const TensorDesc& t : tensors) memory.push_back(random_memory(t.layout.bytes));
    if (channels > 0)
      memory.insert(memory.begin() + static_cast<std::ptrdiff_t>(bias_at),
                    random_memory(static_cast<std::size_t>(channels) * 4));
    return add(desc, std::move(outputs), false, std::move(memory));
  }

  CpuOpOptions options_;
  std::vector<CpuCase> cases;
};

void add_norms(Cases& c, const TensorDesc& x) {
  const std::int64_t channels = x.shape[1];
  const auto floats = [&] { return random_memory(x.layout.bytes); };
  const auto vector = [&] { return random_memory(static_cast<std::size_t>(channels) * 4); };
  const auto stats = [&] { return stats_memory(channels, static_cast<double>(x.shape.numel() / channels)); };
  const auto doubles = [&](std::int64_t count) { return zeroed(static_cast<std::size_t>(count) * 8); };
  c.add(BatchNormMoments{x}, {1}, true, {floats(), doubles(1 + 2 * channels)});
  c.add(BatchNormMerge{channels, 1}, {1}, true, {stats(), doubles(1 + 2 * channels)});
  c.add(BatchNormTrack{{{.channels = channels, .variance = channels}}}, {1}, true,
        {stats(), random_memory(static_cast<std::size_t>(2 * channels) * 4)});
  c.add(BatchNormRunning{channels}, {2}, true, {vector(), vector(), doubles(1 + 2 * channels)});
  c.add(BatchNormForward{x, true, true}, {5}, true, {floats(), stats(), vector(), vector(), floats(), floats()});
  c.add(BatchNormBackwardSums{x, true}, {5, 6, 7, 8}, true,
        {floats(), floats(), floats(), floats(), stats(), doubles(2 * channels), vector(), vector(), floats()});
  c.add(BatchNormBackward{x, 1, true}, {6}, true,
        {floats(), floats(), floats(), stats(), vector(), doubles(2 * channels), floats()});
  for (const std::int64_t groups : {std::int64_t{4}, kEachPixel}) {
    const std::int64_t group_stats = 2 * x.shape[0] * groups_of(x.shape, groups);
    c.add(GroupNormForward{x, groups}, {3, 4}, true, {floats(), vector(), vector(), floats(), doubles(group_stats)});
    c.add(GroupNormBackward{x, groups}, {4, 5, 6}, true,
          {floats(), floats(), vector(), random_memory(static_cast<std::size_t>(group_stats) * 8), floats(), vector(),
           vector()});
  }
}

}  // namespace

void CpuCase::run() { op->execute(args, workspace.raw()); }

std::vector<CpuCase> every_cpu_op(int threads) {
  Cases c(threads);
  const Window window{3, 1, 1};
  const Shape x{kBatch, 16, 12, 10}, y{kBatch, 32, 12, 10}, w{32, 16, 3, 3}, pooled{kBatch, 32, 6, 5};
  const auto conv =
      c.product(Conv2dForward{any_layout(x), any_layout(w), any_layout(y), window, true, true}, 2, 32, {3}).tensors();
  c.product(Conv2dBackwardData{conv[2], any_layout(w), conv[0], window}, 0, 0, {2});
  c.product(Conv2dBackwardWeights{conv[0], conv[2], any_layout(w), window, true}, 3, 32, {2, 3});
  const Shape out{kBatch, 24}, weights{24, 32 * 30};
  const DropoutSpec spec{0.3f, 2};
  const Window tiles{2, 2, 0};
  const MaxPool2dForward pool{conv[2], any_layout(pooled), tiles, true, true, spec};
  const TensorDesc p = make_cpu_op(pool, c.options_)->tensors()[1];
  const auto floats = [&](const TensorDesc& t) { return random_memory(t.layout.bytes); };
  Tensor mask = zeroed(p.layout.bytes / 4);
  for (std::size_t i = 0; i < mask.bytes(); ++i)
    mask.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i % 5 == 4 ? 255 : i % 5);
  c.add(pool, {1, 2}, true, {floats(conv[2]), floats(p), mask.clone(), samples_memory(), step_memory()});
  c.add(MaxPool2dBackward{p, conv[2], tiles, spec}, {2}, true, {floats(p), mask.clone(), floats(conv[2])});
  const auto linear =
      c.product(LinearForward{p, any_layout(weights), any_layout(out), true, true}, 2, 24, {3}).tensors();
  c.product(LinearBackwardData{linear[2], any_layout(weights), p}, 0, 0, {2});
  c.product(LinearBackwardWeights{p, linear[2], any_layout(weights), true}, 3, 24, {2, 3});
  c.add(ReluForward{conv[2]}, {1}, true, {floats(conv[2]), floats(conv[2])});
  c.add(ReluBackward{conv[2]}, {2}, true, {floats(conv[2]), floats(conv[2]), floats(conv[2])});
  c.add(FunctionForward{conv[2], Gelu{}}, {1}, true, {floats(conv[2]), floats(conv[2])});
  c.add(FunctionBackward{conv[2], Gelu{}}, {2}, true, {floats(conv[2]), floats(conv[2]), floats(conv[2])});
  c.add(DropoutApply{conv[2], spec}, {1}, true, {floats(conv[2]), floats(conv[2]), samples_memory(), step_memory()});
  c.add(AddForward{conv[2], true}, {2}, true, {floats(conv[2]), floats(conv[2]), floats(conv[2])});
  for (const Shape& factors : {y, Shape{kBatch, 32, 1, 1}, Shape{kBatch, 1, 12, 10}}) {
    c.product(MultiplyForward{conv[2], any_layout(factors)}, 0, 0, {2});
    c.product(MultiplyBackward{conv[2], any_layout(factors)}, 0, 0, {3, 4});
  }
  const TensorDesc factors{{kBatch, 32, 1, 1}, DType::f32, plain_cpu_layout({kBatch, 32, 1, 1}, DType::f32)};
  c.add(DropFactors{factors, spec}, {2}, true, {samples_memory(), step_memory(), floats(factors)});
  c.product(CopyChannels{conv[2], any_layout({kBatch, 40, 12, 10}), 3, 11, 29}, 0, 0, {1});
  c.product(CopyChannels{conv[2], any_layout({kBatch, 40, 12, 10}), 3, 11, 14, 2, 2}, 0, 0, {1});
  for (const Resampling::Mode mode : {Resampling::Mode::nearest, Resampling::Mode::bilinear}) {
    c.product(ResampleForward{conv[2], any_layout({kBatch, 32, 17, 20}), {mode}}, 0, 0, {1});
    c.product(ResampleBackward{any_layout({kBatch, 32, 17, 20}), conv[2], {mode}}, 0, 0, {1});
  }
  for (const std::int64_t numbers : {1, 32}) {
    const auto weights_memory = [&] { return random_memory(static_cast<std::size_t>(numbers) * 4); };
    c.add(ChannelwiseForward{conv[2], numbers, Channelwise::prelu}, {2}, true,
          {floats(conv[2]), weights_memory(), floats(conv[2])});
    c.add(ChannelwiseBackward{conv[2], numbers, Channelwise::prelu}, {3, 4}, true,
          {floats(conv[2]), floats(conv[2]), weights_memory(), floats(conv[2]), weights_memory()});
  }
  c.add(ChannelwiseBackward{conv[2], 32}, {4}, true, {floats(conv[2]), {}, {}, {}, random_memory(32 * 4)});
  for (const TensorDesc& t : {conv[2], TensorDesc{y, DType::f32, plain_cpu_layout(y, DType::f32)}}) {
    c.add(SoftmaxForward{t}, {1}, true, {floats(t), floats(t)});
    c.add(SoftmaxBackward{t}, {2}, true, {floats(t), floats(t), floats(t)});
  }
  add_norms(c, conv[2]);
  const auto vector = [&] { return random_memory(32 * 4); };
  Tensor variance = vector();
  for (float& value : variance.span<float>()) value = std::abs(value) + 0.1f;
  c.add(BatchNormFold{conv[1]}, {6, 7}, true,
        {floats(conv[1]), vector(), vector(), vector(), vector(), std::move(variance), floats(conv[1]), vector()});
  c.product(AvgPool2dForward{conv[2], any_layout(pooled), tiles}, 0, 0, {1});
  c.product(AvgPool2dBackward{any_layout(pooled), conv[2], tiles}, 0, 0, {1});
  c.product(AvgPool2dForward{conv[2], any_layout({kBatch, 32, 1, 1}), {}, true}, 0, 0, {1});
  const std::int64_t batch = 90, classes = 110;
  c.add(SoftmaxCrossEntropy{batch, classes}, {3, 4}, true,
        {random_memory(static_cast<std::size_t>(batch * classes) * 4), labels_memory(batch, 110), step_memory(),
         random_memory(static_cast<std::size_t>(batch * classes) * 4), results_memory()});
  c.add(LossOfOutputs{MseLoss{}, batch, classes}, {3, 4}, true,
        {random_memory(static_cast<std::size_t>(batch * classes) * 4),
         random_memory(static_cast<std::size_t>(batch * classes) * 4), step_memory(),
         random_memory(static_cast<std::size_t>(batch * classes) * 4), results_memory()});
  const TensorDesc plain{y, DType::f32, plain_cpu_layout(y, DType::f32)},
      wide{y, DType::f64, plain_cpu_layout(y, DType::f64)};
  c.add(Reorder{conv[2], plain}, {1}, true, {floats(conv[2]), floats(plain)});
  c.add(Reorder{wide, conv[2]}, {1}, true, {zeroed(wide.layout.bytes), floats(conv[2])});
  c.add(Fill{100001}, {0}, true, {random_memory(100001)});
  const std::int64_t count = 30011;
  const auto range = [&] { return random_memory(static_cast<std::size_t>(count) * 4); };
  const std::int64_t blocks = (count + kNormBlock - 1) / kNormBlock;
  c.add(Accumulate{count}, {1}, true, {range(), range()});
  c.add(MovingAverage{count}, {1}, true, {range(), range(), step_memory()});
  c.add(OptimizerUpdate{count, kind_of(Sgd{.momentum = 0.9f})}, {0, 2}, true,
        {range(), range(), range(), {}, step_memory(), results_memory()});
  const kernels::UpdateKind lamb = kind_of(Lamb{});
  Tensor segments = zeroed(static_cast<std::size_t>(blocks) * sizeof(TensorSegment));
  for (std::int64_t i = 0; i < blocks; ++i)
    reinterpret_cast<TensorSegment*>(segments.raw())[i] = {
        i * kNormBlock, static_cast<std::int32_t>(std::min(kNormBlock, count - i * kNormBlock)), 0, {}};
  c.add(UpdateDirection{blocks, lamb, count}, {2, 7, 8}, true,
        {range(),
         range(),
         zeroed(static_cast<std::size_t>(count) * 8),
         {},
         step_memory(),
         results_memory(),
         segments.clone(),
         range(),
         zeroed(static_cast<std::size_t>(blocks) * 16)});
  c.add(ApplyDirection{blocks, lamb, {}}, {0}, true,
        {range(), range(), {}, step_memory(), results_memory(), segments.clone(), zeroed(8), {}});
  c.add(Orthogonalize{151, 190}, {0}, true, {range()});
  c.add(Orthogonalize{190, 151}, {0}, true, {range()});
  c.add(GradNormPartials{count}, {1}, true, {range(), zeroed(static_cast<std::size_t>(blocks) * 8)});
  c.add(GradNormFinish{blocks}, {2}, true,
        {zeroed(static_cast<std::size_t>(blocks) * 8), step_memory(), results_memory()});
  Tensor rows = samples_memory();
  for (std::int64_t& row : rows.span<std::int64_t>()) row %= 10;
  Tensor dataset = random_memory(static_cast<std::size_t>(10 * x.without_first().numel()));
  Tensor statistics = random_memory(2 * 16 * 4);
  const GatherInputs inputs{.images = static_cast<const std::uint8_t*>(dataset.raw()),
                            .statistics = statistics.data<float>(),
                            .padding = 2,
                            .flip = 1,
                            .augment = 1};
  Tensor how = zeroed(sizeof inputs);
  std::memcpy(how.raw(), &inputs, sizeof inputs);
  c.add(GatherImages{{x, DType::f32, conv[0].layout}}, {2}, true,
        {std::move(rows), std::move(how), floats(conv[0]), std::move(dataset), std::move(statistics)});
  return std::move(c.cases);
}

}  // namespace dp::test
