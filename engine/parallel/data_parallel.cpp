// The calls of a DataParallel. Each prepares the step on the caller's thread and then runs it on every worker; the
// step itself is in engine/step/worker.cpp.
#include "dp/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "dp/error.h"
#include "engine/base/crc32c.h"
#include "engine/base/loss_kind.h"
#include "engine/optimizer/optimizer.h"
#include "engine/parallel/data_parallel_state.h"
#include "engine/state/loss_scale.h"
#include "engine/state/snapshot.h"

namespace dp {

using engine::Worker;
using NamedTensor = std::pair<std::string, Tensor>;

namespace {

// The targets of a loss of outputs: a row for each image. With weights of samples a row has one number more.
void check_targets(const Batch& batch, const Model& model, const OutputLoss& loss, std::int64_t columns) {
  require_type(batch.targets, DType::f32, "targets");
  const Shape wanted{batch.size(), columns};
  const bool weighted = columns > model.output().numel();
  if (batch.size() > 0 && (batch.targets.empty() || batch.targets.shape() != wanted))
    throw Error(ErrorCode::usage,
                fmt::format("the targets of a batch have shape {}; give one for each output of model '{}'{}: {}",
                            batch.targets.empty() ? "()" : to_string(batch.targets.shape()), model.name(),
                            weighted ? ", and the weight of the sample" : "", to_string(wanted)));
  if (batch.size() == 0 || !batch.targets.storage()->host_accessible()) return;
  const bool of_one_class = is_of_one_class(loss), bounded = of_one_class || is_of_classes(loss);
  std::int64_t column = 0;
  for (const float value : batch.targets.span<float>()) {
    const bool is_weight = column == model.output().numel();
    if (is_weight && (!(value >= 0) || !std::isfinite(value)))
      throw Error(ErrorCode::usage, fmt::format("the weight of a sample is {}; give a number from 0 on", value));
    if (!is_weight && bounded && (!(value >= 0) || !(of_one_class ? std::isfinite(value) : value <= 1)))
      throw Error(
          ErrorCode::usage,
          fmt::format("target {} is not {}, as the loss {} requires; correct the data set, or choose a loss for "
                      "numbers such as mse",
                      value, of_one_class ? "a number from 0 on" : "between 0 and 1", name_of(loss)));
    column = column + 1 == columns ? 0 : column + 1;
  }
}

// One class number for each image.
void check_labels(const Batch& batch, const Model& model, std::int64_t rows) {
  const std::int64_t images = batch.size();
  if (!batch.targets.empty())
    throw Error(ErrorCode::usage,
                "a batch has targets, but cross-entropy reads labels; set DataParallelOptions::output_loss, or "
                "soft_targets for training");
  require_type(batch.labels, DType::i32, "labels");
  if (rows != images)
    throw Error(ErrorCode::usage,
                fmt::format("a batch has {} images but {} labels; give one label per image", images, rows));
  if (images > 0 && batch.labels.shape().rank() != 1)
    throw Error(ErrorCode::usage,
                fmt::format("the labels of a batch have shape {}; give one class number per image: ({},)",
                            to_string(batch.labels.shape()), images));
  if (images > 0 && batch.labels.storage()->host_accessible())
    for (const std::int32_t label : batch.labels.span<std::int32_t>())
      if (label < 0 || label >= model.output()[0])
        throw Error(ErrorCode::usage, fmt::format("label {} is not one of the {} classes of model '{}', 0 to {}", label,
                                                  model.output()[0], model.name(), model.output()[0] - 1));
}

void check_batch(const Batch& batch, const engine::ModelSetup& setup, bool training) {
  const Model& model = setup.model;
  const auto loss = setup.output_loss(training);
  if (batch.global_size() < 1) throw Error(ErrorCode::usage, "a batch needs at least one sample");
  const std::int64_t images = batch.size();
  const Shape& shape = batch.resident.set ? batch.resident.set->images.shape() : batch.images.shape();
  check_images(shape, model);
  const auto rows = [](const Tensor& t) { return t.empty() || t.shape().rank() == 0 ? std::int64_t{0} : t.shape()[0]; };
  require_type(batch.images, DType::f32, "images");
  require_type(batch.samples, DType::i64, "sample indices");
  if (setup.options.own_loss && batch.resident.set)
    throw Error(ErrorCode::usage, "a loss of the program's own requires batches with images, not device-resident ones");
  if (loss)
    check_targets(batch, model, *loss, setup.target_columns(training));
  else if (!setup.options.own_loss || batch.targets.empty())
    check_labels(batch, model, rows(batch.labels));
  if (!batch.samples.empty() && rows(batch.samples) != images)
    throw Error(ErrorCode::usage, fmt::format("a batch has {} images but {} sample indices; give one index per image",
                                              images, rows(batch.samples)));
  if (!batch.resident.set || images == 0) return;
  for (const std::int64_t sample : batch.samples.span<std::int64_t>())
    if (sample < 0 || sample >= shape[0])
      throw Error(ErrorCode::usage, fmt::format("sample index {} is out of range; the images have indices 0 to {}",
                                                sample, shape[0] - 1));
}

// With DataParallelOptions::check_replicas, after an update.
template <typename State>
void check_replicas(const DataParallel& net, State& s) {
  if (!s.setup.options.check_replicas || net.replicas_identical()) return;
  s.team.pool.abort_flag()->store(true);  // these weights must not be saved
  throw Error(ErrorCode::device, fmt::format("the replicas' weights differ after step {}", s.team.step));
}

}  // namespace

void check_images(const Shape& shape, const Model& model) {
  if (shape.without_first() != model.input())
    throw Error(ErrorCode::usage, fmt::format("images of shape {} do not fit model '{}', which reads {} per sample",
                                              to_string(shape), model.name(), to_string(model.input())));
}

void require_type(const Tensor& tensor, DType type, const char* what) {
  if (!tensor.empty() && tensor.dtype() != type)
    throw Error(ErrorCode::usage,
                fmt::format("{} are {}, not {}; convert them", what, to_string(tensor.dtype()), to_string(type)));
}

DataParallel::DataParallel(const Model& model, const DataParallelOptions& options)
    : state_(std::make_unique<State>(model, resolved(options))) {}
DataParallel::~DataParallel() = default;

void DataParallel::train_step(const Batch& batch, const Optimizer& optimizer) {
  State& s = *state_;
  const int micro_batches = s.setup.options.grad_accum_steps;
  const engine::UpdateKind update = engine::kind_of(optimizer);
  engine::check(optimizer);
  check_batch(batch, s.setup, /*training=*/true);
  if (s.setup.options.own_loss) {
    try {
      s.backward(s.own_loss(batch, /*training=*/true).grad);
      s.update(optimizer);
    } catch (...) {
      s.team.pool.abort_flag()->store(true);  // the running statistics have this batch: they must not be saved
      throw;
    }
    return check_replicas(*this, s);
  }
  s.require_two_values(batch.size(), batch.global_size(), micro_batches);
  s.team.extend_row_numbers(batch.size());
  s.begin_change();
  if (s.begun) s.end_step();
  s.reserve(engine::training_batch(batch.size(), batch.resident, s.setup.options));
  s.reserve(update);
  s.team.graphs->begin_step({batch.size(), batch.global_size(), update, batch.resident.set != nullptr},
                            s.setup.pipelined() ? 1 : micro_batches, s.step_is_eager());
  const kernels::StepInputs inputs = s.step_inputs(batch.global_size(), &optimizer);
  s.team.on_workers([&](Worker& worker) { worker.train(batch, inputs, update); });
  s.team.graphs->end_step();
  s.end_step();
  s.updated();
  s.state_dict.count_trained_batches(
      std::min<std::int64_t>(micro_batches, batch.size()));  // only micro-batches with rows
  check_replicas(*this, s);
}

void DataParallel::evaluate(const Batch& batch) {
  State& s = *state_;
  check_batch(batch, s.setup, /*training=*/false);
  if (s.setup.options.own_loss) {
    s.own_loss(batch, /*training=*/false);
    return;
  }
  s.forward_rows = 0;
  s.reserve(engine::evaluation_batch(batch.size(), batch.resident, s.setup.options));
  s.team.graphs->evaluated(batch.global_size(), batch.resident.set != nullptr);
  s.state_dict.broadcast_running_statistics();
  const kernels::StepInputs inputs = s.step_inputs(batch.global_size());
  s.team.on_workers([&](Worker& worker) { worker.evaluate(batch, inputs); });
}

void DataParallel::prepare(const std::vector<std::int64_t>& train_batches,
                           const std::vector<std::int64_t>& eval_batches, const DeviceImages& train_images,
                           const DeviceImages& eval_images, const std::optional<Optimizer>& optimizer) {
  State& s = *state_;
  const DataParallelOptions& options = s.setup.options;
  if (optimizer) engine::check(*optimizer);
  for (const DeviceImages& images : {train_images, eval_images})
    if (images.set) check_images(images.set->images.shape(), s.setup.model);
  for (const std::int64_t rows : train_batches)
    s.require_two_values(rows, options.process_group ? rows * s.setup.replica_count() : rows, options.grad_accum_steps);
  std::vector<engine::BatchKind> batches;
  for (const std::int64_t rows : train_batches)
    s.team.extend_row_numbers(rows), batches.push_back(engine::training_batch(rows, train_images, options));
  for (const std::int64_t rows : eval_batches) batches.push_back(engine::evaluation_batch(rows, eval_images, options));
  std::optional<Optimizer> update;
  if (optimizer)
    update = optimizer;
  else if (!train_batches.empty() && !s.optimizer.has_state())
    update = Sgd{.momentum = 0.9f};
  s.reservations.require_room(batches, update, /*together=*/true);
  s.reservations.allocate(batches);
  if (update) s.reserve(engine::kind_of(*update));
  s.team.graphs->memory_changed();
  if (options.process_group) s.rank_memory = s.team.values_of_all_ranks(s.first().device.memory_use());
}

// --- the parts of a step ------------------------------------------------------------------------------------------

const Tensor& DataParallel::forward(const Tensor& images) {
  return state_->forward_all({.images = images}, /*training=*/true);
}
const Tensor& DataParallel::predict(const Tensor& images) {
  return state_->forward_all({.images = images}, /*training=*/false);
}
void DataParallel::backward(const Tensor& logits_grad) { state_->backward(logits_grad); }
void DataParallel::step(const Optimizer& optimizer) { state_->update(optimizer); }

// --- state ---------------------------------------------------------------------------------------------------

std::vector<NamedTensor> DataParallel::weights() const { return state_->state_dict.weights(); }
std::vector<NamedTensor> DataParallel::gradients() const { return state_->state_dict.gradients(); }
std::function<void()> DataParallel::snapshot(Checkpoint& to) {
  const auto copy = std::make_shared<engine::Snapshot>(state_->team, state_->state_dict, state_->optimizer, to);
  return [copy] { copy->finish(); };
}
OptimizerState DataParallel::optimizer_state() const { return state_->optimizer.state(); }

void DataParallel::set_weights(const std::vector<NamedTensor>& tensors) {
  State& s = *state_;
  s.begin_change();
  s.state_dict.set_weights(tensors);
  if (s.setup.options.ema_decay) s.team.on_master([](Worker& master) { master.moving_average->restart(); });
}

void DataParallel::set_optimizer_state(const OptimizerState& state) {
  state_->forward_rows = 0;
  if (state_->optimizer.set_state(state)) state_->team.graphs->memory_changed();
}

std::int64_t DataParallel::step_count() const { return state_->team.step + (state_->begun ? 1 : 0); }
void DataParallel::set_step_count(std::int64_t steps) {
  state_->team.step = steps;
  state_->begun = false;
}

void DataParallel::swap_average() {
  State& s = *state_;
  if (!s.setup.options.ema_decay)
    throw Error(ErrorCode::usage, "there is no moving average of the weights; set ema_decay");
  s.begin_change();
  s.team.wait_for_all();
  s.team.on_master([](Worker& master) { master.moving_average->swap(); });
  s.state_dict.broadcast_weights();
  s.state_dict.running_statistics_changed();
}

std::vector<NamedTensor> DataParallel::average_weights() {
  swap_average();
  auto tensors = weights();
  swap_average();
  return tensors;
}

void DataParallel::set_average_weights(const std::vector<NamedTensor>& tensors) {
  engine::StateDict& state_dict = state_->state_dict;
  const std::int64_t tracked = state_dict.batches_tracked();
  state_dict.check_weights(tensors);
  swap_average();
  state_dict.set_weights(tensors);
  swap_average();
  state_dict.set_batches_tracked(tracked);
}

std::int64_t DataParallel::average_updates() const {
  return state_->first().moving_average ? state_->first().moving_average->updates() : 0;
}

void DataParallel::set_average_updates(std::int64_t updates) {
  if (updates < 0) throw Error(ErrorCode::usage, fmt::format("a moving average cannot have made {} updates", updates));
  for (const auto& worker : state_->team.workers)
    if (worker->moving_average) worker->moving_average->set_updates(updates);
}

std::optional<LossScale> DataParallel::loss_scale() const {
  if (!state_->setup.scales_loss()) return std::nullopt;
  return engine::read_loss_scale(state_->team);
}

void DataParallel::set_loss_scale(const LossScale& scale) {
  if (!state_->setup.scales_loss()) throw Error(ErrorCode::usage, "the loss is scaled only with float16 (amp)");
  if (!(std::isnormal(scale.scale) && scale.scale > 0))
    throw Error(ErrorCode::usage, "a loss scale is a positive number, not " + std::to_string(scale.scale));
  engine::write_loss_scale(state_->team, scale);
}

bool DataParallel::replicas_identical() const {
  State& s = *state_;
  s.team.wait_for_all();
  s.state_dict.all_gather_values();
  // With mixed precision, also compares the weights in the activation type.
  std::vector<std::vector<std::byte>> copies(s.team.workers.size());
  s.team.on_workers([&](Worker& worker) {
    const engine::Arenas& arenas = worker.arenas;
    const std::size_t bytes = arenas.table().bytes();
    const std::size_t low = s.setup.sizes_of(worker.rank(), worker.stage(), worker.context()).low_values;
    auto& copy = copies[worker.number];
    copy.resize(bytes + low);
    worker.compute().download(copy.data(), arenas.values(), bytes);
    if (low != 0) worker.compute().download(copy.data() + bytes, arenas.low_value(0), low);
  });
  if (s.setup.options.process_group) {
    const auto digests = s.team.values_of_all_ranks(crc32c(copies.front()));
    return std::equal(digests.begin() + 1, digests.end(), digests.begin());
  }
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (copies[i] != copies[i % s.setup.stages.size()]) return false;
  return true;
}

}  // namespace dp
