#include "benchmarks/programs/bare_loop.h"

#include "kernels/device/host/cores.h"

namespace dp::benchmarks {
namespace {

// kLayoutRows of DataParallel, so that the parameters get the same layouts.
constexpr std::int64_t kLayoutBatch = 32;

kernels::ContextOptions context_options(int threads, bool exact_convolutions, Amp amp) {
  const std::vector<int>& cores = kernels::usable_cores();
  kernels::ContextOptions options;
  options.threads = threads;
  options.fast_convolutions = !exact_convolutions;
  options.autotune = true;  // as in DataParallel
  if (amp != Amp::off) options.activations = amp == Amp::bfloat16 ? DType::bf16 : DType::f16;
  if (static_cast<std::size_t>(threads) <= cores.size()) options.cores.assign(cores.begin(), cores.begin() + threads);
  return options;
}

}  // namespace

BareLoop::BareLoop(const Model& model, const std::vector<std::pair<std::string, Tensor>>& weights, Device device,
                   int threads, std::uint64_t seed, std::int64_t batch, bool exact_convolutions, Amp amp)
    : model_(model), norms_(model) {
  const kernels::ContextOptions options = context_options(threads, exact_convolutions, amp);
  kernels::ContextOptions untried = options;  // the plan that chooses the layouts never runs
  untried.autotune = false;
  auto context = kernels::backend(device.kind).open(device, options);
  context->bind_thread();
  const engine::Plan preferred(model_, *kernels::backend(device.kind).open(device, untried), {.batch = kLayoutBatch},
                               nullptr, norms_);
  table_ = std::make_unique<engine::ParameterTable>(model_, preferred.parameter_layouts(), context->compute_type());
  replica_ = std::make_unique<engine::Replica>(model_, std::move(context), *table_, norms_, engine::ReplicaOptions{});
  for (std::size_t i = 0; i < table_->entries().size(); ++i)
    for (const auto& [name, tensor] : weights)
      if (name == table_->entries()[i].name)
        replica_->arenas.import_entry(static_cast<int>(i), tensor, replica_->arenas.values());
  momenta_ = replica_->device.allocate(table_->bytes(), &MemoryUse::optimizer);
  kernels::OptimizerUpdate update{table_->size(), kernels::kind_of(Sgd{.momentum = 0.9f})};
  if (replica_->arenas.mixed()) {
    kernels::Context& own = replica_->context();
    update.copy = own.activation_type();
    const Shape flat{table_->size()};
    const auto cast = own.make_op(kernels::Reorder{{flat, table_->type(), own.plain_layout(flat, table_->type())},
                                                   {flat, *update.copy, own.plain_layout(flat, *update.copy)}});
    kernels::run_op<kernels::Reorder>(*cast, replica_->compute(),
                                      {.src = replica_->arenas.values(), .dst = replica_->arenas.low_value(0)});
    replica_->compute().synchronize();
  }
  update_ = replica_->context().make_op(update);
  plan_ = &replica_->runner.plan({.batch = batch});
  inputs_.seed = seed;
}

void BareLoop::upload(const Batch& batch, const Sgd& sgd) {
  inputs_.loss_scale = 1.0f / static_cast<float>(batch.size());
  inputs_.update.groups[0] = {sgd.lr, sgd.weight_decay};
  inputs_.update.options = RuleOptions::of(sgd);
  replica_->arenas.upload_step_inputs(inputs_);
  ++inputs_.step;

  const bool resident = batch.resident.set != nullptr;
  replica_->runner.bind(0, plan_,
                        {resident ? nullptr : batch.images.data<float>(), batch.labels.data<std::int32_t>(),
                         batch.samples.data<std::int64_t>(), batch.size(), resident ? &batch.resident : nullptr});
}

void BareLoop::begin(const Batch& batch, const Sgd& sgd) {
  upload(batch, sgd);
  replica_->runner.make_images();
}

void BareLoop::update() {
  kernels::run_op<kernels::OptimizerUpdate>(
      *update_, replica_->compute(),
      {.weights = replica_->arenas.values(),
       .gradients = replica_->arenas.gradients(),
       .state = momenta_->data(),
       .inputs = replica_->arenas.step_inputs(),
       .results = replica_->arenas.step_results(),
       .copy = replica_->arenas.mixed() ? replica_->arenas.low_value(0) : nullptr});
}

void BareLoop::train_step(const Batch& batch, const Sgd& sgd) {
  upload(batch, sgd);
  kernels::Context& context = replica_->context();
  kernels::Stream& compute = replica_->compute();
  if (context.has_graphs() && graph_ == nullptr && eager_steps_++ > 0) {
    context.begin_graph(&compute);
    try {
      run();
      graph_ = context.end_graph(&compute);
    } catch (...) {
      context.drop_graph(&compute);
      throw;
    }
  }
  if (graph_ != nullptr)
    graph_->launch(compute);
  else
    run();
}

void BareLoop::run() {
  replica_->runner.make_images();
  replica_->runner.run(0, plan_->forward());
  replica_->runner.run(0, plan_->running_statistics());
  replica_->runner.run(0, plan_->loss());
  replica_->runner.run(0, plan_->backward());
  update();
}

double BareLoop::take_loss() {
  const kernels::StepResults results = replica_->arenas.take_results().front();
  return results.samples ? results.loss_sum / static_cast<double>(results.samples) : 0;
}

}  // namespace dp::benchmarks
