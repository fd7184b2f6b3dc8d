// The CPU's ops, one by one, on the shapes of a network. Every round runs each different op once, in the order of a training
// step, so that caches are as in training. Columns: how often a step runs the op, its implementation, best and median time,
// GFLOP/s (or GB/s of the tensors the op must touch), and the floor: the time the op's arithmetic and memory traffic take at the rates measured at the start.
// Pin the threads: OMP_PROC_BIND=true OMP_PLACES=cores cpu_ops <mnist|resnet> <batch> <threads> [rounds]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "dp/random.h"
#include "dp/tensor.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/step_state.h"

namespace {

using namespace dp::kernels;
using dp::DType;
using dp::Shape;
using dp::Tensor;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

TensorDesc any(const Shape& shape) {
  TensorDesc desc;
  desc.shape = shape;
  return desc;
}

struct Case {
  std::string name;
  std::unique_ptr<HostOp> op;
  std::vector<void*> args;
  double flops = 0, bytes = 0;
  int times_a_step = 1;
  std::vector<double> times{};
};

class Lab {
 public:
  Lab(std::int64_t batch, int threads) : batch_(batch), options_{threads, false} {
    omp_set_num_threads(threads);
    for (std::int64_t i = 0; i < batch; ++i) samples_.push_back(i * 37);
    step_.seed = 7, step_.step = 3, step_.loss_scale = 1.f / static_cast<float>(batch);
    step_.lr = 1e-9f, step_.momentum = 0.9f, step_.max_norm = 1;
    labels_.assign(static_cast<std::size_t>(batch), 3);
  }

  // Of what is added from now on.
  void times_a_step(int times) { times_ = times; }

  // Forward now, backward later: steps are kept in order of a training step.
  TensorDesc conv(const std::string& name, const TensorDesc& x, std::int64_t out, Window w, bool dx,
                  bool bias_relu = true) {
    const auto size = [&](std::int64_t in) { return (in + 2 * w.padding - w.kernel) / w.stride + 1; };
    const Shape y{batch_, out, size(x.shape[2]), size(x.shape[3])}, weights{out, x.shape[1], w.kernel, w.kernel};
    const double flops = 2.0 * static_cast<double>(y.numel() * x.shape[1] * w.kernel * w.kernel);
    auto forward = make_cpu_op(Conv2dForward{x, any(weights), any(y), w, bias_relu, bias_relu}, options_);
    const auto t = forward->tensors();
    add(forward_, name + " forward", std::move(forward), {memory(t[0]), memory(t[1]), vector(out), memory(t[2])}, flops,
        {t[0], t[1], t[2]});
    auto wgrad = make_cpu_op(Conv2dBackwardWeights{t[0], t[2], any(weights), w, bias_relu}, options_);
    const auto g = wgrad->tensors();
    add(backward_, name + " weights", std::move(wgrad), {memory(g[0]), memory(g[1]), memory(g[2]), vector(out)}, flops,
        {t[0], t[1], t[2]});
    if (dx) {
      auto dgrad = make_cpu_op(Conv2dBackwardData{t[2], any(weights), t[0], w}, options_);
      const auto d = dgrad->tensors();
      if (!(d[1].layout == t[1].layout)) {
        auto reorder = make_cpu_op(Reorder{t[1], d[1]}, options_);
        add(backward_, name + " w reorder", std::move(reorder), {memory(t[1]), memory(d[1])}, 0, {t[1], d[1]});
      }
      add(backward_, name + " data", std::move(dgrad), {memory(d[0]), memory(d[1]), memory(d[2])}, flops,
          {t[0], t[1], t[2]});
    }
    if (!(g[2].layout == t[1].layout))
      add(backward_, name + " dw reorder", make_cpu_op(Reorder{g[2], t[1]}, options_), {memory(g[2]), memory(t[1])}, 0,
          {g[2], t[1]});
    parameters_ += times_ * (static_cast<std::int64_t>(t[1].layout.bytes / 4) + out);
    return t[2];
  }

  // A batch normalisation as its fused forms: plain, with ReLU, or at the end of a residual block, where an addend comes in and
  // two gradients come back.
  enum class Norm { plain, relu, block_end };
  void batch_norm(const std::string& name, const TensorDesc& x, Norm kind) {
    const bool relu = kind != Norm::plain, end = kind == Norm::block_end;
    const std::int64_t channels = x.shape[1], doubles = 8 * (1 + 2 * channels);
    const auto numbers = [&] { return host(static_cast<std::size_t>(doubles)); };
    void *moments = numbers(), *stats = numbers(), *sums = numbers();
    std::vector<TensorDesc> two{x, x}, three{x, x, x}, four{x, x, x, x}, five{x, x, x, x, x};
    add(forward_, name + " moments", make_cpu_op(BatchNormMoments{x}, options_), {memory(x), moments}, 0, {x});
    add(forward_, name + " merge", make_cpu_op(BatchNormMerge{channels, 1}, options_),
        {moments, stats, vector(channels), vector(channels)}, 0, {});
    add(forward_, name + " forward", make_cpu_op(BatchNormForward{x, relu, end}, options_),
        {memory(x), stats, vector(channels), vector(channels), end ? memory(x) : nullptr, memory(x)}, 0,
        end ? three : two);
    add(backward_, name + " backward", make_cpu_op(BatchNormBackward{x, 1, relu && !end}, options_),
        {memory(x), memory(x), relu && !end ? memory(x) : nullptr, stats, vector(channels), sums, memory(x)}, 0,
        relu && !end ? four : three);
    add(backward_, name + " sums", make_cpu_op(BatchNormBackwardSums{x, relu}, options_),
        {memory(x), end ? memory(x) : nullptr, memory(x), relu ? memory(x) : nullptr, stats, sums, vector(channels),
         vector(channels), end ? memory(x) : nullptr},
        0,
        end    ? five
        : relu ? three
               : two);
    parameters_ += times_ * 2 * channels;
  }

  TensorDesc global_pool(const TensorDesc& x) {
    auto forward = make_cpu_op(AvgPool2dForward{x, any({batch_, x.shape[1], 1, 1}), {}, true}, options_);
    const TensorDesc y = forward->tensors()[1];
    add(forward_, "pool forward", std::move(forward), {memory(x), memory(y)}, 0, {x, y});
    add(backward_, "pool backward", make_cpu_op(AvgPool2dBackward{y, x, {}, true}, options_), {memory(y), memory(x)}, 0,
        {x, y});
    return y;
  }

  TensorDesc linear(const std::string& name, const TensorDesc& x, std::int64_t out, bool relu) {
    const Shape y{batch_, out}, weights{out, x.shape.numel() / batch_};
    const double flops = 2.0 * static_cast<double>(x.shape.numel() * out);
    auto forward = make_cpu_op(
        LinearForward{x, any(weights), {y, DType::f32, plain_cpu_layout(y, DType::f32)}, true, relu}, options_);
    const auto t = forward->tensors();
    add(forward_, name + " forward", std::move(forward), {memory(t[0]), memory(t[1]), vector(out), memory(t[2])}, flops,
        {t[0], t[1], t[2]});
    auto wgrad = make_cpu_op(LinearBackwardWeights{t[0], t[2], any(weights), true}, options_);
    const auto g = wgrad->tensors();
    add(backward_, name + " weights", std::move(wgrad), {memory(g[0]), memory(g[1]), memory(g[2]), vector(out)}, flops,
        {t[0], t[1], t[2]});
    if (!(g[2].layout == t[1].layout))
      add(backward_, name + " dw reorder", make_cpu_op(Reorder{g[2], t[1]}, options_), {memory(g[2]), memory(t[1])}, 0,
          {g[2], t[1]});
    auto dgrad = make_cpu_op(LinearBackwardData{t[2], any(weights), t[0]}, options_);
    const auto d = dgrad->tensors();
    if (!(d[1].layout == t[1].layout))
      add(backward_, name + " w reorder", make_cpu_op(Reorder{t[1], d[1]}, options_), {memory(t[1]), memory(d[1])}, 0,
          {t[1], d[1]});
    add(backward_, name + " data", std::move(dgrad), {memory(d[0]), memory(d[1]), memory(d[2])}, flops,
        {t[0], t[1], t[2]});
    parameters_ += static_cast<std::int64_t>(t[1].layout.bytes / 4) + out;
    return t[2];
  }

  void relu_backward(const std::string& name, const TensorDesc& y) {
    add(backward_, name + " relu backward", make_cpu_op(ReluBackward{y}, options_), {memory(y), memory(y), memory(y)},
        0, {y, y, y});
  }

  TensorDesc pool(const TensorDesc& x, Window w, bool dropout) {
    const Shape shape{batch_, x.shape[1], x.shape[2] / w.stride, x.shape[3] / w.stride};
    const std::optional<DropoutSpec> spec = dropout ? std::optional<DropoutSpec>({0.25f, 1}) : std::nullopt;
    auto forward = make_cpu_op(MaxPool2dForward{x, any(shape), w, true, true, spec}, options_);
    const TensorDesc y = forward->tensors()[1];
    void* mask = host(y.layout.bytes / 4);
    add(forward_, "pool+relu+dropout forward", std::move(forward),
        {memory(x), memory(y), mask, samples_.data(), &step_}, 0, {x, y});
    add(backward_, "pool backward", make_cpu_op(MaxPool2dBackward{y, x, w, spec}, options_),
        {memory(y), mask, memory(x)}, 0, {x, y});
    return y;
  }

  void dropout(const TensorDesc& x) {
    for (auto* list : {&forward_, &backward_})
      add(*list, "dropout", make_cpu_op(DropoutApply{x, {0.5f, 2}}, options_),
          {memory(x), memory(x), samples_.data(), &step_}, 0, {x, x});
  }

  void loss(const TensorDesc& logits) {
    add(forward_, "loss", make_cpu_op(SoftmaxCrossEntropy{batch_, logits.shape[1]}, options_),
        {memory(logits), labels_.data(), &step_, memory(logits), &results_}, 0, {logits, logits});
  }

  void update() {
    const TensorDesc arena{{parameters_}, DType::f32, plain_cpu_layout({parameters_}, DType::f32)};
    void* partials = host(static_cast<std::size_t>(parameters_ / kNormBlock + 1) * 8);
    void *w = memory(arena), *g = memory(arena), *m = memory(arena);
    add(update_, "grad norm", make_cpu_op(GradNormPartials{parameters_}, options_), {g, partials}, 0, {arena});
    add(update_, "sgd", make_cpu_op(SgdUpdate{parameters_}, options_), {w, g, m, &step_, &results_}, 0,
        {arena, arena, arena, arena, arena});
  }

  void run(int rounds, double gflops, double gbytes) {
    std::vector<Case*> order;
    for (auto& c : forward_) order.push_back(&c);
    for (auto c = backward_.rbegin(); c != backward_.rend(); ++c) order.push_back(&*c);
    for (auto& c : update_) order.push_back(&c);
    std::size_t workspace_bytes = 0;
    for (const Case* c : order) workspace_bytes = std::max(workspace_bytes, c->op->workspace_bytes());
    void* workspace = host(workspace_bytes);
    for (int round = -2; round < rounds; ++round) {
      for (Case* c : order) {
        const double start = seconds();
        c->op->execute(c->args, workspace);
        if (round >= 0) c->times.push_back(seconds() - start);
      }
    }
    std::printf("%-28s %2s %-28s %8s %8s %14s %8s\n", "op", "x", "implementation", "best ms", "median", "rate",
                "floor");
    double step_best = 0, step_median = 0;
    for (Case* c : order) {
      std::sort(c->times.begin(), c->times.end());
      const double best = c->times.front(), median = c->times[c->times.size() / 2];
      const double floor = std::max(c->flops / gflops, c->bytes / gbytes) * 1e-9;
      const bool arithmetic = c->flops > 0;
      step_best += c->times_a_step * best, step_median += c->times_a_step * median;
      std::printf("%-28s %2d %-28s %8.3f %8.3f %8.1f %s %8.3f\n", c->name.c_str(), c->times_a_step,
                  c->op->implementation().c_str(), best * 1e3, median * 1e3,
                  (arithmetic ? c->flops : c->bytes) * 1e-9 / best, arithmetic ? "GF/s " : "GB/s ", floor * 1e3);
    }
    std::printf("step: best %.2f ms, median %.2f ms\n", step_best * 1e3, step_median * 1e3);
  }

 private:
  void add(std::vector<Case>& list, std::string name, std::unique_ptr<HostOp> op, std::vector<void*> args, double flops,
           const std::vector<TensorDesc>& touched) {
    double bytes = 0;
    for (const TensorDesc& t : touched) bytes += static_cast<double>(t.layout.bytes);
    list.push_back({std::move(name), std::move(op), std::move(args), flops, bytes, times_});
  }
  // Random floats; one block for each call, so that no op finds its input warm by accident of sharing.
  void* memory(const TensorDesc& t) {
    blocks_.emplace_back(Shape{static_cast<std::int64_t>(t.layout.bytes / 4)});
    dp::Random random(blocks_.size(), dp::RandomUse::synthetic);
    for (float& v : blocks_.back().span<float>()) v = random.uniform(-0.5f, 0.5f);
    return blocks_.back().raw();
  }
  void* vector(std::int64_t count) { return host(static_cast<std::size_t>(count) * 4); }
  void* host(std::size_t bytes) {
    blocks_.emplace_back(Shape{static_cast<std::int64_t>(bytes + 64)}, DType::u8);
    return blocks_.back().raw();
  }

  std::int64_t batch_, parameters_ = 0;
  int times_ = 1;
  CpuOpOptions options_;
  std::vector<Tensor> blocks_;
  std::vector<std::int64_t> samples_;
  std::vector<std::int32_t> labels_;
  StepInputs step_;
  StepResults results_;
  std::vector<Case> forward_, backward_, update_;
};

double measured_gflops(int threads) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = seconds();
    float sink = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sink)
    {
      typedef float Wide __attribute__((vector_size(64)));
      Wide acc[10];  // all different, or the compiler computes one
      for (int i = 0; i < 10; ++i) acc[i] = Wide{} + static_cast<float>(i);
      const Wide a = Wide{} + 1.0001f, b = Wide{} + static_cast<float>(omp_get_thread_num());
      for (int i = 0; i < 1000000; ++i)
#pragma GCC unroll 10
        for (auto& value : acc) value = value * a + b;
      for (auto& value : acc) sink += value[0] + value[7];
    }
    if (sink == 1) std::puts("");  // keeps the loop
    best = std::max(best, threads * 1e6 * 10 * 16 * 2 / (seconds() - start) * 1e-9);
  }
  return best;
}

double measured_gbytes(int threads) {
  const std::int64_t count = 16 << 20;
  Tensor a(Shape{count}), b(Shape{count});
  float *from = a.data<float>(), *to = b.data<float>();
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double start = seconds();
#pragma omp parallel for num_threads(threads)
    for (std::int64_t part = 0; part < threads; ++part)
      std::memcpy(to + count * part / threads, from + count * part / threads,
                  static_cast<std::size_t>(count / threads) * 4);
    best = std::max(best, static_cast<double>(count) * 8 / (seconds() - start) * 1e-9);
  }
  return best;
}

TensorDesc images(std::int64_t n, std::int64_t c, std::int64_t size) {
  const Shape shape{n, c, size, size};
  return {shape, DType::f32, plain_cpu_layout(shape, DType::f32)};
}

void mnist(Lab& lab, std::int64_t batch) {
  TensorDesc x = lab.conv("conv1", images(batch, 1, 28), 32, {3, 1, 0}, false);
  lab.relu_backward("conv1", x);
  x = lab.conv("conv2", x, 64, {3, 1, 0}, true);
  x = lab.pool(x, {2, 2, 0}, true);
  x = lab.linear("fc1", x, 128, true);
  lab.relu_backward("fc1", x);
  lab.dropout(x);
  x = lab.linear("fc2", x, 10, false);
  lab.loss(x);
}

// ResNet18 with the CIFAR stem: each different op once, with how often it is there.
void resnet(Lab& lab, std::int64_t batch) {
  TensorDesc x = lab.conv("stem", images(batch, 3, 32), 64, {3, 1, 1}, false, false);
  for (const std::int64_t width : {64, 128, 256, 512}) {
    const std::string name = "layer" + std::to_string(width);
    if (width > 64) {
      lab.conv(name + " 1x1/2", x, width, {1, 2, 0}, true, false);
      x = lab.conv(name + " /2", x, width, {3, 2, 1}, true, false);
      lab.batch_norm(name + " 1x1/2 bn", x, Lab::Norm::plain);
    }
    lab.times_a_step(width > 64 ? 3 : 4);
    lab.conv(name, x, width, {3, 1, 1}, true, false);
    lab.times_a_step(width > 64 ? 2 : 3);
    lab.batch_norm(name + " bn", x, Lab::Norm::relu);
    lab.times_a_step(2);
    lab.batch_norm(name + " bn end", x, Lab::Norm::block_end);
    lab.times_a_step(1);
  }
  const TensorDesc logits = lab.linear("fc", lab.global_pool(x), 100, false);
  lab.loss(logits);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::puts("usage: cpu_ops <mnist|resnet> <batch> <threads> [rounds]");
    return 2;
  }
  const std::int64_t batch = std::atoll(argv[2]);
  const int threads = std::atoi(argv[3]), rounds = argc > 4 ? std::atoi(argv[4]) : 20;
  const double gflops = measured_gflops(threads), gbytes = measured_gbytes(threads);
  std::printf("%s batch %lld, %d threads: measured %.0f GFLOP/s, copy %.1f GB/s\n", argv[1],
              static_cast<long long>(batch), threads, gflops, gbytes);
  Lab lab(batch, threads);
  std::string(argv[1]) == "mnist" ? mnist(lab, batch) : resnet(lab, batch);
  lab.update();
  lab.run(rounds, gflops, gbytes);
  return 0;
}
