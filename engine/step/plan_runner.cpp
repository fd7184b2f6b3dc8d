#include "engine/step/plan_runner.h"

#include <algorithm>

#include "dp/error.h"
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

std::byte* begin_of(kernels::Buffer& buffer) { return static_cast<std::byte*>(buffer.data()); }

}  // namespace

bool ActivationArenaSize::grow(const Plan& plan, const ReplicaOptions& options) {
  return grow(aligned(plan.arena_bytes() + plan.workspace_bytes()), plan.workspace_bytes(),
              plan.options().input ? plan.input().desc.layout.bytes : 0, options);
}

bool ActivationArenaSize::grow(std::size_t lane_bytes, std::size_t workspace_bytes, std::size_t input_bytes,
                               const ReplicaOptions& options) {
  const bool larger_input = options.saved_inputs > 0 && aligned(input_bytes) > saved_input;
  if (larger_input) saved_input = aligned(input_bytes);
  if (lane_bytes <= lane) return larger_input;
  lane = lane_bytes;
  workspace = workspace_bytes * static_cast<std::size_t>(options.lanes);
  return true;
}

std::size_t ActivationArenaSize::total(const ReplicaOptions& options) const {
  return lane * static_cast<std::size_t>(options.lanes) + saved_input * static_cast<std::size_t>(options.saved_inputs);
}

PlanRunner::PlanRunner(const Model& model, const NormTable& norms, const ReplicaOptions& options, OpenDevice& device,
                       Arenas& arenas, StepClock& clock, InputFeed* feed)
    : model_(model),
      norms_(norms),
      options_(options),
      device_(device),
      arenas_(arenas),
      clock_(clock),
      feed_(feed),
      items_(static_cast<std::size_t>(options.micro_batches * options.local_shards)),
      image_sets_(device.context(), device.compute()) {
  for (auto& event : consumed_) event = device.context().make_event();
  for (std::size_t i = 0; i < items_.size(); ++i) set_addresses(static_cast<int>(i), items_[i]);
}

const Plan& PlanRunner::plan(const PlanOptions& options) {
  const Plan& plan = plan_without_memory(options);
  reserve(plan);
  return plan;
}

const Plan* PlanRunner::find_plan(const PlanOptions& options) const {
  const auto same = [&](const std::unique_ptr<Plan>& plan) {
    const PlanOptions& o = plan->options();
    return o.batch == options.batch && o.training == options.training && o.accumulate == options.accumulate &&
           o.dropout == options.dropout && o.norm == options.norm && o.joins_loss == options.joins_loss &&
           o.folds_norms == options.folds_norms;
  };
  const auto known = std::find_if(plans_.begin(), plans_.end(), same);
  return known != plans_.end() ? known->get() : nullptr;
}

const Plan& PlanRunner::plan_without_memory(const PlanOptions& options) {
  if (const Plan* const known = find_plan(options)) return *known;
  clock_.progress().advance();  // plan creation can take long: count it as progress
  plans_.push_back(std::make_unique<Plan>(model_, device_.context(), options, &arenas_.table(), norms_));
  clock_.progress().advance();
  return *plans_.back();
}

void PlanRunner::reserve(const Plan& plan) {
  ActivationArenaSize needed = activation_arena_size_;
  if (needed.grow(plan, options_) || activation_arena_ == nullptr) {
    device_.compute().synchronize();
    device_.subtract_bytes(activation_arena_size_.workspace, &MemoryUse::workspace);
    device_.subtract_bytes(activation_arena_size_.total(options_) - activation_arena_size_.workspace,
                           &MemoryUse::activations);
    activation_arena_.reset();
    activation_arena_ = device_.allocate(needed.total(options_), &MemoryUse::activations);
    device_.subtract_bytes(needed.workspace, &MemoryUse::activations);
    device_.add_bytes(needed.workspace, &MemoryUse::workspace, /*replaces_memory=*/false);
    activation_arena_size_ = needed;
    for (std::size_t i = 0; i < items_.size(); ++i) set_addresses(static_cast<int>(i), items_[i]);
  }
  if (const std::size_t bytes = missing_folded_bytes(plan); bytes > 0) {
    folded_[&plan].memory = device_.context().allocate(bytes);
    device_.add_bytes(bytes, &MemoryUse::weights);
  }
  if (feed_ == nullptr) return;
  const std::int64_t rows = plan.options().batch;
  const std::size_t before = feed_->held_bytes();
  feed_->reserve(InputFeed::bytes_for(parts_of({.rows = rows, .target_bytes = options_.target_bytes})) * items_.size());
  if (feed_->held_bytes() != before) device_.add_bytes(feed_->held_bytes() - before, &MemoryUse::other);
}

void PlanRunner::set_addresses(int number, Item& item) const {
  const int shard = number % options_.local_shards;
  const auto at = [&](Space space) -> std::byte*& { return item.base[static_cast<std::size_t>(space)]; };
  item.global_shard = static_cast<std::size_t>(options_.rank * options_.local_shards + shard);
  at(Space::value) = arenas_.values();
  at(Space::low_value) = arenas_.mixed() ? arenas_.low_value(0) : nullptr;
  at(Space::gradient) = arenas_.gradients() + static_cast<std::size_t>(shard) * arenas_.table().bytes();
  at(Space::running_statistics) = arenas_.running_statistics();
  at(Space::moments) = arenas_.moments();
  at(Space::input) = item.inputs[0];
  at(Space::labels) = item.inputs[1];
  at(Space::samples) = item.inputs[2];
  at(Space::step_inputs) = reinterpret_cast<std::byte*>(arenas_.step_inputs());
  at(Space::step_results) = reinterpret_cast<std::byte*>(arenas_.step_results() + shard);
  at(Space::loss_scaler) = reinterpret_cast<std::byte*>(arenas_.scaler());
  if (activation_arena_ != nullptr)
    at(Space::activation) =
        begin_of(*activation_arena_) + static_cast<std::size_t>(number % options_.lanes) * activation_arena_size_.lane;
  if (item.plan == nullptr) return;
  if (item.plan->folded_bytes() > 0) at(Space::folded) = begin_of(*folded_.at(item.plan).memory);
  item.workspace = at(Space::activation) + item.plan->arena_bytes();
}

std::byte* PlanRunner::saved_input(int item) const {
  return begin_of(*activation_arena_) + static_cast<std::size_t>(options_.lanes) * activation_arena_size_.lane +
         static_cast<std::size_t>(item % options_.saved_inputs) * activation_arena_size_.saved_input;
}

void PlanRunner::fold(int item, std::uint64_t version) {
  const Plan* const plan = plan_of(item);
  const auto own = folded_.find(plan);
  if (own == folded_.end() || own->second.version == version) return;
  run(item, plan->fold());
  own->second.version = version;
}

// Pointers that are null in the input stay null. Only the first stage reads images.
InputFeed::Parts PlanRunner::parts_of(const ShardInput& input) const {
  const auto rows = static_cast<std::size_t>(input.rows);
  const std::size_t image = options_.stage > 0 ? 0 : static_cast<std::size_t>(model_.input().numel()) * sizeof(float);
  return {{{options_.stage > 0 ? nullptr : input.images, rows * image},
           {input.labels, rows * input.target_bytes},
           {input.samples, rows * sizeof(std::int64_t)}}};
}

void PlanRunner::upload_images(const DeviceImages& images, std::int64_t rows) {
  if (const std::size_t bytes = image_sets_.upload(images, rows); bytes > 0)
    device_.add_bytes(bytes, &MemoryUse::other, /*replaces_memory=*/false);
  device_.ensure_size(images_, static_cast<std::size_t>(rows * model_.input().numel()) * items_.size() * sizeof(float),
                      &MemoryUse::other);
}

void PlanRunner::reserve_copies(std::int64_t rows, bool resident) {
  const InputFeed::Parts parts = parts_of({.rows = rows, .target_bytes = options_.target_bytes});
  std::size_t largest = 0;
  for (std::size_t i = resident ? 1 : 0; i < parts.size(); ++i) largest = std::max(largest, parts[i].bytes);
  if (feed_ != nullptr) device_.context().reserve_copies(largest);
}

void PlanRunner::make_images() {
  for (const Item& item : items_)
    if (item.resident_rows > 0)
      image_sets_.make_batch(reinterpret_cast<const std::int64_t*>(item.inputs[2]), item.resident_rows,
                             reinterpret_cast<float*>(item.inputs[0]));
}

void PlanRunner::bind(int number, const Plan* plan, const ShardInput& input) {
  if (number == 0) {
    rows_bound_ = 0;
    if (feed_ != nullptr) feed_->begin();
  }
  Item& item = items_[static_cast<std::size_t>(number)];
  item.plan = plan;
  item.resident_rows = 0;
  if (plan != nullptr) {
    const InputFeed::Parts parts = parts_of(input);
    if (feed_ != nullptr)
      item.inputs = feed_->upload(parts);
    else
      for (std::size_t i = 0; i < parts.size(); ++i)
        item.inputs[i] = static_cast<std::byte*>(const_cast<void*>(parts[i].from));  // ops only read it
    if (input.resident && options_.stage == 0) {
      upload_images(*input.resident, input.rows);
      image_sets_.choose(*input.resident);
      item.inputs[0] =
          begin_of(*images_) + static_cast<std::size_t>(rows_bound_ * model_.input().numel()) * sizeof(float);
      item.resident_rows = input.rows;
    }
    rows_bound_ += input.rows;
  }
  set_addresses(number, item);
}

std::string PlanRunner::describe(const Plan& plan) {
  Item shown = items_.front();
  shown.plan = &plan;
  set_addresses(0, shown);
  // Inputs are not bound before the first step. Libraries reject null pointers even for work that is only listed.
  for (const Space space : {Space::input, Space::labels, Space::samples})
    if (std::byte*& base = shown.base[static_cast<std::size_t>(space)]; feed_ != nullptr && base == nullptr)
      base = feed_->begin_of_inputs();
  return plan.describe([&](const PlanStep& step) {
    return device_.context().kernels_of(device_.compute(), [&] { enqueue(shown, step); });
  });
}

void PlanRunner::enqueue(const Item& item, const PlanStep& step) {
  std::array<void*, kernels::kMaxOpArgs> args;
  for (int i = 0; i < step.arg_count; ++i) {
    const Ref& ref = step.args[static_cast<std::size_t>(i)];
    args[static_cast<std::size_t>(i)] = ref.space == Space::none ? nullptr : address(item, ref);
  }
  clock_.progress().reach_layer(step.name, step.bytes);
  device_.compute().detail(layer_detail(step.name));
  const NamedRange range(device_.context(), step.name.c_str());
  try {
    step.op->run(device_.compute(), {args.data(), static_cast<std::size_t>(step.arg_count)}, item.workspace);
  } catch (const Error& error) {
    throw Error(error.code(), step.name + ": " + error.what(), error.others());
  }
}

void PlanRunner::throttle() {
  device_.compute().record(*consumed_[current_]);
  current_ ^= 1;
  device_.compute().synchronize(*consumed_[current_]);
}

}  // namespace dp::engine
