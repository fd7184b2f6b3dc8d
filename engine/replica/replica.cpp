#include "engine/replica/replica.h"

#include <algorithm>
#include <numeric>

#include "engine/replica/aligned.h"
#include "kernels/op_args.h"

namespace dp::engine {
namespace {

class NamedRange {
 public:
  NamedRange(kernels::Context& context, const char* name) : context_(context) { context_.begin_range(name); }
  ~NamedRange() { context_.end_range(); }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  kernels::Context& context_;
};

}  // namespace

Replica::Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table,
                 const NormTable& norms, const ReplicaOptions& options)
    : model_(model),
      context_(std::move(context)),
      table_(table),
      norms_(norms),
      options_(options),
      items_(static_cast<std::size_t>(options.micro_batches * options.local_shards)),
      compute_(context_->make_stream()),
      image_sets_(*context_, *compute_) {
  const Sizes bytes = sizes(table, norms, *context_, options);
  compute_->label(kUntimed);
  if (!context_->host_accessible()) feed_.emplace(*context_, *compute_), feed_->label(kUntimed);
  values_ = allocate(bytes.values, &MemoryUse::weights);
  gradients_ = allocate(bytes.gradients, &MemoryUse::gradients);
  step_inputs_ = allocate(bytes.inputs, &MemoryUse::other);
  step_results_ = allocate(bytes.results, &MemoryUse::other);
  set_base(Space::value, values_->data());
  if (mixed()) {
    low_values_ = allocate(bytes.low_values, &MemoryUse::weights);
    set_base(Space::low_value, low_values_->data());
  }
  if (options.scales_loss) {
    scaler_ = allocate(bytes.scaler, &MemoryUse::other);
    set_base(Space::loss_scaler, scaler_->data());
    set_scaler({});
  }
  set_base(Space::step_inputs, step_inputs_->data());
  if (norms.count() > 0) {
    buffers_ = allocate(bytes.buffers, &MemoryUse::statistics);
    moments_ = allocate(bytes.moments, &MemoryUse::statistics);
    set_base(Space::buffer, buffers_->data());
    set_base(Space::moments, moments_->data());
    const auto clear = [&](std::size_t part) {
      clear_parts_.emplace_back(part, context_->make_op(kernels::Fill{part}));
    };
    for (int i = 0; i < norms.count(); ++i) clear(norms.norm(i).moments_bytes()), clear(norms.norm(i).sums_bytes());
  }
  clear_gradients_ = context_->make_op(kernels::Fill{table.bytes()});
  for (auto& event : consumed_) event = context_->make_event();
  const kernels::StepResults empty{};
  for (int shard = 0; shard < options.local_shards; ++shard) compute_->upload(results() + shard, &empty, sizeof empty);
  select(0);
}

Replica::Sizes Replica::sizes(const ParameterTable& table, const NormTable& norms, const kernels::Context& context,
                              const ReplicaOptions& options) {
  const auto local_shards = static_cast<std::size_t>(options.local_shards);
  const DType low = context.activation_type();
  Sizes sizes;
  sizes.values = table.bytes();
  if (low != context.compute_type())
    sizes.low_values = static_cast<std::size_t>(table.size()) * context.element_bytes(low);
  sizes.gradients = table.bytes() * local_shards;
  sizes.buffers = static_cast<std::size_t>(norms.buffer_size()) * size_of(table.type());
  sizes.moments = norms.moments_bytes() * static_cast<std::size_t>(options.shards);
  sizes.inputs = sizeof(kernels::StepInputs);
  sizes.results = sizeof(kernels::StepResults) * local_shards;
  sizes.scaler = options.scales_loss ? sizeof(kernels::LossScaler) : 0;
  return sizes;
}

MemoryUse Replica::Sizes::use() const {
  MemoryUse use;
  use.weights = values + low_values;
  use.gradients = gradients;
  use.statistics = buffers + moments;
  use.other = inputs + results + scaler;
  return use;
}

kernels::LossScaler Replica::read_scaler() {
  kernels::LossScaler copy;
  compute_->download(&copy, scaler(), sizeof copy);
  return copy;
}

void Replica::set_scaler(const kernels::LossScaler& scaler) {
  compute_->upload(this->scaler(), &scaler, sizeof scaler);
}

std::unique_ptr<kernels::Buffer> Replica::allocate(std::size_t bytes, std::size_t MemoryUse::*kind) {
  const bool travels = kind == &MemoryUse::weights || kind == &MemoryUse::gradients || kind == &MemoryUse::optimizer ||
                       kind == &MemoryUse::statistics;
  auto buffer = travels ? context_->allocate_for_peers(bytes) : context_->allocate(bytes);
  held_.*kind += bytes;
  ++allocations_;
  return buffer;
}

bool Replica::ArenaSize::grow(const Plan& plan, const ReplicaOptions& options) {
  return grow(aligned(plan.arena_bytes() + plan.workspace_bytes()), plan.workspace_bytes(),
              plan.options().input ? plan.input().desc.layout.bytes : 0, options);
}

bool Replica::ArenaSize::grow(std::size_t lane_bytes, std::size_t workspace_bytes, std::size_t input_bytes,
                              const ReplicaOptions& options) {
  const bool larger_input = options.saved_inputs > 0 && aligned(input_bytes) > saved_input;
  if (larger_input) saved_input = aligned(input_bytes);
  if (lane_bytes <= lane) return larger_input;
  lane = lane_bytes;
  workspace = workspace_bytes * static_cast<std::size_t>(options.lanes);
  return true;
}

std::size_t Replica::ArenaSize::total(const ReplicaOptions& options) const {
  return lane * static_cast<std::size_t>(options.lanes) + saved_input * static_cast<std::size_t>(options.saved_inputs);
}

std::byte* Replica::saved_input() {
  return static_cast<std::byte*>(arena_->data()) + static_cast<std::size_t>(options_.lanes) * arena_size_.lane +
         static_cast<std::size_t>(selected_ % options_.saved_inputs) * arena_size_.saved_input;
}

const Plan& Replica::plan(const PlanOptions& options) {
  const Plan& plan = planned(options);
  reserve(plan);
  return plan;
}

const Plan* Replica::find_plan(const PlanOptions& options) const {
  const auto same = [&](const std::unique_ptr<Plan>& plan) {
    const PlanOptions& o = plan->options();
    return o.batch == options.batch && o.training == options.training && o.accumulate == options.accumulate &&
           o.dropout == options.dropout && o.norm == options.norm && o.joins_loss == options.joins_loss &&
           o.folds_norms == options.folds_norms;
  };
  const auto known = std::find_if(plans_.begin(), plans_.end(), same);
  return known != plans_.end() ? known->get() : nullptr;
}

const Plan& Replica::planned(const PlanOptions& options) {
  if (const Plan* const known = find_plan(options)) return *known;
  progress_.advance();  // plan creation can take long: count it as progress
  plans_.push_back(std::make_unique<Plan>(model_, *context_, options, &table_, norms_));
  progress_.advance();
  return *plans_.back();
}

void Replica::reserve(const Plan& plan) {
  ArenaSize needed = arena_size_;
  if (needed.grow(plan, options_) || arena_ == nullptr) {
    compute_->synchronize();
    held_.activations = held_.workspace = 0;
    arena_.reset();
    arena_ = allocate(needed.total(options_), &MemoryUse::activations);
    held_.workspace = needed.workspace;
    held_.activations -= held_.workspace;
    arena_size_ = needed;
    select(selected_);
  }
  if (const std::size_t bytes = missing_for_fold(plan); bytes > 0) {
    folded_[&plan].memory = context_->allocate(bytes);
    hold(bytes, &MemoryUse::weights);
  }
  if (!feed_) return;
  const std::int64_t rows = plan.options().batch;
  const std::size_t before = feed_->held();
  feed_->reserve(InputFeed::room_for(parts_of({.rows = rows})) * items_.size());
  held_.other += feed_->held() - before;
  allocations_ += feed_->held() != before;
}

void Replica::fold(const Plan& plan, std::uint64_t version) {
  const auto own = folded_.find(&plan);
  if (own == folded_.end() || own->second.version == version) return;
  run(plan.fold());
  own->second.version = version;
}

// Pointers that are null in the input stay null. Only the first stage reads images.
InputFeed::Parts Replica::parts_of(const ShardInput& input) const {
  const auto rows = static_cast<std::size_t>(input.rows);
  const std::size_t image = options_.stage > 0 ? 0 : static_cast<std::size_t>(model_.input().numel()) * sizeof(float);
  return {{{options_.stage > 0 ? nullptr : input.images, rows * image},
           {input.labels, rows * sizeof(std::int32_t)},
           {input.samples, rows * sizeof(std::int64_t)}}};
}

void Replica::at_least(std::unique_ptr<kernels::Buffer>& buffer, std::size_t bytes) {
  if (buffer != nullptr && buffer->bytes() >= bytes) return;
  compute_->synchronize();
  held_.other -= buffer ? buffer->bytes() : 0;
  buffer = allocate(bytes, &MemoryUse::other);
}

void Replica::upload_images(const DeviceImages& images, std::int64_t rows) {
  held_.other += image_sets_.upload(images, rows);
  at_least(images_, static_cast<std::size_t>(rows * model_.input().numel()) * items_.size() * sizeof(float));
}

void Replica::reserve_copies(std::int64_t rows, bool resident) {
  const InputFeed::Parts parts = parts_of({.rows = rows});
  std::size_t largest = 0;
  for (std::size_t i = resident ? 1 : 0; i < parts.size(); ++i) largest = std::max(largest, parts[i].bytes);
  if (feed_) context_->reserve_copies(largest);
}

void Replica::make_images() {
  for (const Item& item : items_)
    if (item.made > 0)
      image_sets_.gather(reinterpret_cast<const std::int64_t*>(item.inputs[2]), item.made,
                         reinterpret_cast<float*>(item.inputs[0]));
}

void Replica::bind(int item, const Plan* plan, const ShardInput& input) {
  if (item == 0) {
    rows_bound_ = 0;
    if (feed_) feed_->begin();
  }
  Item& bound = items_[static_cast<std::size_t>(item)];
  bound.plan = plan;
  bound.made = 0;
  if (plan != nullptr) {
    const InputFeed::Parts parts = parts_of(input);
    if (feed_)
      bound.inputs = feed_->upload(parts);
    else
      for (std::size_t i = 0; i < parts.size(); ++i)
        bound.inputs[i] = static_cast<std::byte*>(const_cast<void*>(parts[i].from));  // ops only read it
    if (input.resident && options_.stage == 0) {
      upload_images(*input.resident, input.rows);
      image_sets_.choose(*input.resident);
      bound.inputs[0] = static_cast<std::byte*>(images_->data()) +
                        static_cast<std::size_t>(rows_bound_ * model_.input().numel()) * sizeof(float);
      bound.made = input.rows;
    }
    rows_bound_ += input.rows;
  }
  select(item);
}

const Plan* Replica::select(int item) {
  selected_ = item;
  const auto shard = static_cast<std::size_t>(selected_shard());
  const Item& selected = items_[static_cast<std::size_t>(item)];
  set_base(Space::input, selected.inputs[0]);
  set_base(Space::labels, selected.inputs[1]);
  set_base(Space::samples, selected.inputs[2]);
  set_base(Space::gradient, gradients() + shard * table_.bytes());
  set_base(Space::step_results, results() + shard);
  if (arena_ != nullptr)
    set_base(Space::activation, static_cast<std::byte*>(arena_->data()) +
                                    static_cast<std::size_t>(item % options_.lanes) * arena_size_.lane);
  if (selected.plan != nullptr && selected.plan->folded_bytes() > 0)
    set_base(Space::folded, folded_.at(selected.plan).memory->data());
  if (selected.plan != nullptr)
    workspace_ = base_[static_cast<std::size_t>(Space::activation)] + selected.plan->arena_bytes();
  return selected.plan;
}

std::string Replica::describe(const Plan& plan) {
  workspace_ = base_[static_cast<std::size_t>(Space::activation)] + plan.arena_bytes();
  if (plan.folded_bytes() > 0) set_base(Space::folded, folded_.at(&plan).memory->data());
  // Inputs are not bound before the first step. Libraries reject null pointers even for work that is only listed.
  for (const Space space : {Space::input, Space::labels, Space::samples})
    if (feed_ && base_[static_cast<std::size_t>(space)] == nullptr) set_base(space, feed_->place());
  const std::string text =
      plan.describe([this](const PlanStep& step) { return context_->kernels_of(*compute_, [&] { enqueue(step); }); });
  select(selected_);
  return text;
}

void Replica::upload_inputs(const kernels::StepInputs& inputs) {
  compute_->upload(this->inputs(), &inputs, sizeof inputs);
}

void Replica::enqueue(const PlanStep& step) {
  std::array<void*, kernels::kMaxOpArgs> args;
  for (int i = 0; i < step.arg_count; ++i) {
    const Ref& ref = step.args[static_cast<std::size_t>(i)];
    args[static_cast<std::size_t>(i)] = ref.space == Space::none ? nullptr : at(ref);
  }
  progress_.reach_layer(step.name);
  compute_->detail(layer_detail(step.name));
  const NamedRange range(*context_, step.name.c_str());
  try {
    step.op->run(*compute_, {args.data(), static_cast<std::size_t>(step.arg_count)}, workspace_);
  } catch (const Error& error) {
    throw Error(error.code(), step.name + ": " + error.what(), error.others());
  }
}

void Replica::zero_gradients(int shard) {
  kernels::run_op<kernels::Fill>(*clear_gradients_, *compute_,
                                 {.dst = gradients() + static_cast<std::size_t>(shard) * table_.bytes()});
}

void Replica::zero_part(const Gather& gather) {
  std::byte* const part = at({Space::moments, gather.offset, gather.part_bytes});
  for (const auto& [bytes, op] : clear_parts_)
    if (bytes == gather.part_bytes) return kernels::run_op<kernels::Fill>(*op, *compute_, {.dst = part});
}

void Replica::throttle() {
  compute_->record(*consumed_[turn_]);
  turn_ ^= 1;
  compute_->synchronize(*consumed_[turn_]);
}

void Replica::name_phase(const char* name) {
  if (phase_named_) context_->end_range();
  phase_named_ = name != nullptr;
  if (name != nullptr) context_->begin_range(name);
}

void Replica::begin_timing(std::int64_t step) {
  context_->begin_range("step");
  if (tracer_ != nullptr) tracer_->begin_step(step);
  compute_->detail(0);
  timing_since_ = std::chrono::steady_clock::now();
  timing_ = true;
}

void Replica::end_timing() {
  timing_ = false;
  name_phase(nullptr);
  context_->end_range();
  compute_->label(kUntimed);
  if (feed_) feed_->label(kUntimed);
  if (tracer_ != nullptr) tracer_->end_step();
  kernels::LabelSeconds work = context_->take_seconds();
  work[kUntimed] = 0;
  const auto of = [&](Phase phase) { return work[static_cast<std::size_t>(phase)]; };
  times_.scatter += of(Phase::scatter);
  times_.forward += of(Phase::forward) + of(Phase::loss);
  times_.backward += of(Phase::backward);
  times_.reduce += of(Phase::reduce);
  times_.update += of(Phase::update);
  times_.broadcast += of(Phase::broadcast);
  times_.graph += work[kGraph];
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - timing_since_;
  times_.waiting += std::max(0.0, passed.count() - std::accumulate(work.begin(), work.end(), 0.0));
}

std::vector<kernels::StepResults> Replica::take_results() {
  std::vector<kernels::StepResults> copies(static_cast<std::size_t>(options_.local_shards));
  compute_->download(copies.data(), results(), copies.size() * sizeof(kernels::StepResults));
  const kernels::StepResults empty{};
  for (int shard = 0; shard < options_.local_shards; ++shard) compute_->upload(results() + shard, &empty, sizeof empty);
  return copies;
}

void Replica::import_entry(int index, const Tensor& from, std::byte* arena) {
  const ParameterEntry& entry = table_.entry(index);
  const kernels::TensorDesc plain{entry.shape, from.dtype(), context_->plain_layout(entry.shape, from.dtype())};
  const auto reorder = context_->make_op(kernels::Reorder{plain, {entry.shape, table_.type(), entry.layout}});
  const auto staged = context_->allocate(std::max(from.bytes(), std::size_t{1}));
  const auto workspace = context_->allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  compute_->copy(staged->data(), from.raw(), from.bytes());
  std::byte* const values = arena + static_cast<std::size_t>(entry.offset) * size_of(table_.type());
  kernels::run_op<kernels::Reorder>(*reorder, *compute_, {.src = staged->data(), .dst = values}, workspace->data());
  compute_->synchronize();
}

void Replica::export_entry(int index, const std::byte* arena, Tensor& to) {
  const ParameterEntry& entry = table_.entry(index);
  const kernels::TensorDesc plain{entry.shape, to.dtype(), context_->plain_layout(entry.shape, to.dtype())};
  const auto reorder = context_->make_op(kernels::Reorder{{entry.shape, table_.type(), entry.layout}, plain});
  const auto staged = context_->allocate(std::max(to.bytes(), std::size_t{1}));
  const auto workspace = context_->allocate(std::max(reorder->workspace_bytes(), std::size_t{1}));
  const std::byte* values = arena + static_cast<std::size_t>(entry.offset) * size_of(table_.type());
  kernels::run_op<kernels::Reorder>(*reorder, *compute_, {.src = const_cast<std::byte*>(values), .dst = staged->data()},
                                    workspace->data());
  compute_->download(to.raw(), staged->data(), to.bytes());
}

}  // namespace dp::engine
