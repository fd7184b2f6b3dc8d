// Optimizers that compute with whole tensors, on networks: their formulas, and equal bits wherever they run.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "support/catch.h"
#include "support/training.h"

namespace {

using namespace dp;
using namespace dp::test;
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using Values = std::vector<double>;

constexpr Lamb kLamb{.lr = 0.02f, .weight_decay = 0.1f};
constexpr Muon kMuon{.lr = 0.02f};

Values values_of(const Tensor& tensor) {
  Values values;
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    values.push_back(tensor.dtype() == DType::f64 ? tensor.data<double>()[i] : tensor.data<float>()[i]);
  return values;
}

double norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Five Newton-Schulz iterations of a matrix with more columns than rows, or as many.
void orthogonalize_wide(Values& x, std::size_t rows, std::size_t columns) {
  const double size = std::max(norm(x), 1e-7);
  for (double& value : x) value /= size;
  for (int step = 0; step < 5; ++step) {
    Values gram(rows * rows), polynomial(rows * rows), next = x;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < rows; ++j)
        for (std::size_t k = 0; k < columns; ++k) gram[i * rows + j] += x[i * columns + k] * x[j * columns + k];
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < rows; ++j) {
        for (std::size_t k = 0; k < rows; ++k) polynomial[i * rows + j] += gram[i * rows + k] * gram[k * rows + j];
        polynomial[i * rows + j] = -4.7750 * gram[i * rows + j] + 2.0315 * polynomial[i * rows + j];
      }
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        next[i * columns + j] = 3.4445 * x[i * columns + j];
        for (std::size_t k = 0; k < rows; ++k) next[i * columns + j] += polynomial[i * rows + k] * x[k * columns + j];
      }
    x = next;
  }
}

Values orthogonalized(const Values& x, std::size_t rows, std::size_t columns) {
  const bool wide = rows <= columns;
  const std::size_t r = wide ? rows : columns, c = wide ? columns : rows;
  Values y(x.size());
  for (std::size_t i = 0; i < r; ++i)
    for (std::size_t j = 0; j < c; ++j) y[i * c + j] = wide ? x[i * c + j] : x[j * r + i];
  orthogonalize_wide(y, r, c);
  Values result(x.size());
  for (std::size_t i = 0; i < r; ++i)
    for (std::size_t j = 0; j < c; ++j) (wide ? result[i * c + j] : result[j * r + i]) = y[i * c + j];
  return result;
}

// u of AdamW and LAMB in the first update, without weight decay.
Values first_direction(const Values& gradient, double eps) {
  Values u;
  for (const double g : gradient) u.push_back(g / (std::abs(g) + eps));
  return u;
}

// What the first step with LAMB and Muon makes of a parameter.
Values after_lamb(const Values& w, const Values& g, double decay) {
  Values u = first_direction(g, static_cast<double>(kLamb.eps)), result;
  for (std::size_t i = 0; i < u.size(); ++i) u[i] += decay * w[i];
  const double ratio = decay != 0 && norm(w) > 0 && norm(u) > 0 ? norm(w) / norm(u) : 1;
  for (std::size_t i = 0; i < u.size(); ++i) result.push_back(w[i] - static_cast<double>(kLamb.lr) * ratio * u[i]);
  return result;
}

Values after_muon(const Values& w, const Values& g, const Shape& shape) {
  const double lr = static_cast<double>(kMuon.lr), keep = 1 - lr * static_cast<double>(kMuon.weight_decay);
  Values u = first_direction(g, static_cast<double>(kMuon.eps)), result;
  double factor = 1;
  if (shape.rank() > 1 && shape.numel() > shape[0]) {
    const double momentum = static_cast<double>(kMuon.momentum);
    for (std::size_t i = 0; i < u.size(); ++i) u[i] = (momentum * (1 - momentum) + (1 - momentum)) * g[i];
    const std::int64_t rows = shape[0], columns = shape.numel() / rows;
    u = orthogonalized(u, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns));
    factor = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  }
  for (std::size_t i = 0; i < u.size(); ++i) result.push_back(w[i] * keep - lr * factor * u[i]);
  return result;
}

// A tall and a wide linear layer, convolutions with and without groups, a transposed one, and one column per row.
Model many_shapes() {
  ModelBuilder m("many_shapes", Shape{2, 8, 8});
  auto x = m.relu(m.conv2d("conv", m.input(), {.out_channels = 12, .kernel = 3, .padding = 1}));
  x = m.conv2d("depthwise", x, {.out_channels = 12, .kernel = 3, .padding = 1, .groups = 12});
  x = m.batch_norm2d("bn", m.conv2d("pointwise", x, {.out_channels = 20, .kernel = 1, .bias = false}));
  x = m.relu(m.conv2d("grouped", x, {.out_channels = 8, .kernel = 3, .groups = 4}));
  x = m.conv2d("column", m.conv2d("narrow", x, {.out_channels = 1, .kernel = 1}), {.out_channels = 5, .kernel = 1});
  x = m.relu(m.linear("tall", m.flatten(m.global_avg_pool2d(x)), {.out_features = 33}));
  return m.build(m.linear("wide", x, {.out_features = 7}));
}

DataParallelOptions on(Device device, int replicas, Reduce reduce, std::size_t bucket_bytes) {
  DataParallelOptions options = on_cpus(replicas);
  options.devices.assign(static_cast<std::size_t>(replicas), device);
  options.reduce = reduce;
  options.bucket_bytes = bucket_bytes;
  return options;
}

void train(DataParallel& net, const Model& model, const Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step)
    net.train_step(random_batch(model, 12, static_cast<std::uint64_t>(step)), optimizer);
}

}  // namespace

TEST_CASE("a step with LAMB and Muon is their formula for each parameter, whatever its shape and layout") {
  const Model model = many_shapes();
  for (const DeviceKind kind : {DeviceKind::reference, DeviceKind::cpu})
    for (const int replicas : {1, 3})
      for (const bool lamb : {true, false}) {
        DataParallelOptions options = on({kind, 0}, replicas, Reduce::sharded, 0);
        options.parameter_groups = {{.vectors = true, .weight_decay = lamb ? 0.0f : kMuon.weight_decay}};
        DataParallel net(model, options);
        const NamedTensors before = net.weights();
        net.train_step(random_batch(model, 12), lamb ? Optimizer(kLamb) : Optimizer(kMuon));
        std::map<std::string, Values> gradients, after;
        for (const auto& [name, tensor] : net.gradients()) gradients[name] = values_of(tensor);
        for (const auto& [name, tensor] : net.weights())
          if (gradients.contains(name)) after[name] = values_of(tensor);
        for (const auto& [name, tensor] : before) {
          if (!gradients.contains(name)) continue;  // of a batch normalisation
          INFO(name << (lamb ? " lamb" : " muon") << " replicas " << replicas << " kind " << static_cast<int>(kind));
          const Values w = values_of(tensor);
          const double decay = tensor.shape().rank() == 1 ? 0.0 : static_cast<double>(kLamb.weight_decay);
          const Values expected =
              lamb ? after_lamb(w, gradients[name], decay) : after_muon(w, gradients[name], tensor.shape());
          Values moved, error;
          for (std::size_t i = 0; i < w.size(); ++i) {
            moved.push_back(expected[i] - w[i]);
            error.push_back(after[name][i] - expected[i]);
          }
          CHECK(norm(moved) > 0);
          // The rates are float32.
          CHECK(norm(error) <= (kind == DeviceKind::reference ? 1e-9 : 1e-4) * norm(moved));
        }
      }
}

TEST_CASE("LAMB and Muon give the same bits on any number of replicas, also if a share ends inside a tensor") {
  const Model model = residual_net();
  for (const Optimizer& optimizer : {Optimizer(kLamb), Optimizer(kMuon)})
    for (const auto& [threads, bucket_bytes] : {std::pair{1, 0}, {1, 4000}, {2, 0}}) {
      NamedTensors weights, state;
      for (const int replicas : {1, 2, 3})
        for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded}) {
          INFO(name_of(optimizer) << " threads " << threads << " bucket " << bucket_bytes << " replicas " << replicas
                                  << " reduce " << static_cast<int>(reduce));
          DataParallelOptions options = on({}, replicas, reduce, static_cast<std::size_t>(bucket_bytes));
          options.logical_shards = 6;
          options.threads_per_replica = threads;
          DataParallel net(model, options);
          train(net, model, optimizer, 2);
          if (weights.empty()) weights = net.weights(), state = net.optimizer_state().tensors;
          CHECK(bit_equal(net.weights(), weights));
          CHECK(bit_equal(net.optimizer_state().tensors, state));
          CHECK(net.replicas_identical());
        }
    }
}

TEST_CASE("LAMB and Muon train pipelines, micro-batches and clipped gradients as they train whole batches") {
  const Model model = small_convnet();
  for (const Optimizer& optimizer : {Optimizer(kLamb), Optimizer(kMuon)}) {
    DataParallelOptions micro = on({DeviceKind::reference, 0}, 2, Reduce::sharded, 0);
    DataParallelOptions pipeline = on({DeviceKind::reference, 0}, 4, Reduce::sharded, 0);
    micro.grad_accum_steps = 3;
    pipeline.pipeline = {.stages = 2, .micro_batches = 3};
    DataParallelOptions whole = on({DeviceKind::reference, 0}, 1, Reduce::master, 0);
    for (DataParallelOptions* options : {&whole, &micro, &pipeline}) options->clip_grad_norm = 0.5;
    DataParallel expected(model, whole);
    train(expected, model, optimizer, 3);
    for (const DataParallelOptions& options : {micro, pipeline}) {
      INFO(name_of(optimizer) << " stages " << options.pipeline.stages);
      DataParallel net(model, options);
      train(net, model, optimizer, 3);
      const NamedTensors actual = net.weights(), wanted = expected.weights();
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        Values error = values_of(actual[i].second);
        const Values values = values_of(wanted[i].second);
        for (std::size_t k = 0; k < values.size(); ++k) error[k] -= values[k];
        INFO(wanted[i].first);
        CHECK(norm(error) <= 1e-9 * norm(values));
      }
    }
  }
}

TEST_CASE(
    "LAMB and Muon hold directions of all parameters on each replica that updates, until another optimizer follows") {
  const Model model = small_convnet();
  const Batch batch = random_batch(model, 8);
  DataParallelOptions options = on({}, 2, Reduce::master, 0);
  DataParallel net(model, options), adamw(model, options);
  adamw.train_step(batch, AdamW{});
  for (const Optimizer& optimizer : {Optimizer(kLamb), Optimizer(kMuon)}) {
    net.train_step(batch, optimizer);
    CHECK(net.memory_use(0).optimizer > adamw.memory_use(0).optimizer + net.memory_use(0).gradients);
    CHECK(net.memory_use(1).optimizer == 0);
  }
  net.train_step(batch, AdamW{});
  CHECK(net.memory_use(0).optimizer == adamw.memory_use(0).optimizer);
  CHECK(net.optimizer_state().updates == 1);
}
