// The plans of a pipeline's stages, run one after another, compute the bits of the whole model's plan.
#include <algorithm>
#include <cstring>
#include <memory>

#include "dp/models.h"
#include "dp/random.h"
#include "engine/step/pipeline/stage_split.h"
#include "engine/step/replica.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::engine;

constexpr std::int64_t kRows = 6;
constexpr int kClasses = 10;

struct Images {
  Tensor images, labels, samples;

  explicit Images(const Shape& shape, std::uint64_t seed)
      : images(shape.prepended(kRows)), labels(Shape{kRows}, DType::i32), samples(Shape{kRows}, DType::i64) {
    Random random(seed, RandomUse::synthetic);
    for (float& value : images.span<float>()) value = random.normal();
    for (std::int64_t row = 0; row < kRows; ++row) {
      labels.span<std::int32_t>()[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(random.below(kClasses));
      samples.span<std::int64_t>()[static_cast<std::size_t>(row)] = 100 * static_cast<std::int64_t>(seed) + row;
    }
  }
  ShardInput input() const {
    return {images.data<float>(), labels.data<std::int32_t>(), samples.data<std::int64_t>(), kRows};
  }
};

// One stage on one device.
struct Stage {
  const Model model;
  const NormTable norms;
  std::unique_ptr<ParameterTable> table;
  std::unique_ptr<Replica> replica;
  PlanOptions options;

  Stage(const Model& part, DeviceKind kind, const PlanOptions& planned) : model(part), norms(model), options(planned) {
    auto context = kernels::backend(kind).open({kind, 0}, {});
    const Plan layouts(model, *context, options, nullptr, norms);
    table = std::make_unique<ParameterTable>(model, layouts.parameter_layouts(), context->compute_type());
    replica = std::make_unique<Replica>(model, std::move(context), *table, norms, ReplicaOptions{});
    std::memset(replica->arenas.gradients(), 0, table->bytes());
    if (norms.count() > 0) fill_statistics();
    for (const ParameterSpec& parameter : model.parameters()) import(parameter);
    kernels::StepInputs inputs;
    inputs.seed = 3, inputs.step = 7, inputs.loss_scale = 1.0f / (2 * kRows);
    replica->arenas.upload_step_inputs(inputs);
  }

  // Values that depend on the name only: a stage and the whole model get the same ones.
  void import(const ParameterSpec& parameter) {
    Tensor values(parameter.shape);
    Random random(std::hash<std::string>()(parameter.name), RandomUse::init);
    for (float& value : values.span<float>())
      value = 0.2f * random.normal() + (parameter.init.kind == InitKind::constant ? parameter.init.value : 0);
    replica->arenas.import_entry(entry_of(parameter.name), values, replica->arenas.values());
  }
  int entry_of(const std::string& name) const {
    for (std::size_t i = 0; i < table->entries().size(); ++i)
      if (table->entries()[i].name == name) return static_cast<int>(i);
    throw std::logic_error(name);
  }
  const Plan& plan(bool accumulate) {
    options.accumulate = accumulate;
    return replica->runner.plan(options);
  }
  Tensor gradient(const std::string& name) {
    Tensor values(table->entry(entry_of(name)).shape);
    replica->arenas.export_entry(entry_of(name), replica->arenas.gradients(), values);
    return values;
  }
  void fill_statistics() {  // means and variances of 1
    const auto count = static_cast<std::size_t>(norms.running_statistics_size());
    if (table->type() == DType::f64)
      std::fill_n(reinterpret_cast<double*>(replica->arenas.running_statistics()), count, 1.0);
    else
      std::fill_n(reinterpret_cast<float*>(replica->arenas.running_statistics()), count, 1.0f);
  }
  std::size_t statistics_bytes() const {
    return static_cast<std::size_t>(norms.running_statistics_size()) * size_of(table->type());
  }
  std::vector<std::byte> running_statistics() {
    if (norms.count() == 0) return {};
    return {replica->arenas.running_statistics(), replica->arenas.running_statistics() + statistics_bytes()};
  }
};

// The model in stages; without cuts the whole model.
class Stages {
 public:
  Stages(const Model& model, std::span<const Cut> cuts, DeviceKind kind, bool training) {
    PlanOptions options{.batch = kRows, .training = training};
    const std::vector<Model> parts = cuts.empty() ? std::vector{model} : split(model, cuts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      options.last = i + 1 == parts.size();
      stages_.push_back(std::make_unique<Stage>(parts[i], kind, options));
      if (!options.last) options.input = stages_.back()->plan(false).output().desc;
    }
  }

  void forward(const Images& images, bool accumulate) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Replica& replica = *stages_[i]->replica;
      const Plan& plan = stages_[i]->plan(accumulate);
      replica.runner.bind(0, &plan, images.input());
      if (i > 0) hand_over(*stages_[i - 1], *before_, before_->output(), *stages_[i], plan.input());
      replica.runner.run(0, plan.forward());
      replica.runner.run(0, plan.loss());
      before_ = &plan;
    }
  }
  void backward(bool accumulate) {
    for (std::size_t i = stages_.size(); i-- > 0;) {
      const Plan& plan = stages_[i]->plan(accumulate);
      if (i + 1 < stages_.size())
        hand_over(*stages_[i + 1], *before_, before_->input_grad(), *stages_[i], plan.output_grad());
      stages_[i]->replica->runner.run(0, plan.backward());
      stages_[i]->replica->runner.run(0, plan.running_statistics());
      before_ = &plan;
    }
  }
  Stage& of(const std::string& parameter) {
    for (const auto& stage : stages_)
      for (const ParameterSpec& own : stage->model.parameters())
        if (own.name == parameter) return *stage;
    throw std::logic_error(parameter);
  }
  kernels::StepResults results() { return *stages_.back()->replica->arenas.step_results(); }
  std::vector<std::byte> running_statistics() {
    std::vector<std::byte> all;
    for (const auto& stage : stages_) {
      const std::vector<std::byte> own = stage->running_statistics();
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

 private:
  static void hand_over(Stage& from, const Plan&, const Border& sent, Stage& to, const Border& received) {
    REQUIRE(sent.desc.layout == received.desc.layout);
    std::memcpy(to.replica->runner.address(0, received.where), from.replica->runner.address(0, sent.where),
                sent.desc.layout.bytes);
  }

  std::vector<std::unique_ptr<Stage>> stages_;
  const Plan* before_ = nullptr;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

struct Case {
  std::string name;
  Model model;
};

std::vector<Case> cases() {
  return {{"mnist_convnet", models::mnist_convnet()},
          {"mlp", models::mlp({.input = {1, 28, 28}})},
          {"resnet18", models::resnet18({.classes = kClasses, .input = {3, 16, 16}, .width = 4})}};
}

// Every cut alone, and all cuts at once.
std::vector<std::vector<Cut>> selections(const std::vector<Cut>& cuts) {
  std::vector<std::vector<Cut>> all{cuts};
  for (const Cut& cut : cuts) all.push_back({cut});
  return all;
}

TEST_CASE("stages: two micro-batches give the gradients, loss and running statistics of the whole model, bit for bit") {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::reference})
    for (const Case& one : cases()) {
      const std::vector<Images> micro_batches{Images(one.model.input(), 1), Images(one.model.input(), 2)};
      const auto train = [&](Stages& stages) {
        for (std::size_t micro = 0; micro < micro_batches.size(); ++micro)
          stages.forward(micro_batches[micro], micro > 0), stages.backward(micro > 0);
      };
      Stages whole(one.model, {}, kind, /*training=*/true);
      train(whole);
      CHECK(whole.results().samples == 2 * kRows);
      const auto all = selections(possible_cuts(one.model));
      CHECK(all.size() >= 2);
      for (const std::vector<Cut>& cuts : all) {
        INFO(one.name << " on " << (kind == DeviceKind::cpu ? "the CPU" : "the reference") << ", cut at "
                      << cuts.front().name << ", " << cuts.size() << " cuts");
        Stages stages(one.model, cuts, kind, /*training=*/true);
        train(stages);
        CHECK(stages.results().loss_sum == whole.results().loss_sum);
        CHECK(stages.results().top1 == whole.results().top1);
        CHECK(stages.running_statistics() == whole.running_statistics());
        for (const ParameterSpec& parameter : one.model.parameters()) {
          INFO(parameter.name);
          CHECK(same_bits(stages.of(parameter.name).gradient(parameter.name),
                          whole.of(parameter.name).gradient(parameter.name)));
        }
      }
    }
}

TEST_CASE("stages: an evaluation gives the loss of the whole model, bit for bit") {
  for (const Case& one : cases()) {
    const Images images(one.model.input(), 5);
    Stages whole(one.model, {}, DeviceKind::cpu, /*training=*/false);
    whole.forward(images, false);
    for (const std::vector<Cut>& cuts : selections(possible_cuts(one.model))) {
      Stages stages(one.model, cuts, DeviceKind::cpu, /*training=*/false);
      stages.forward(images, false);
      CHECK(stages.results().loss_sum == whole.results().loss_sum);
      CHECK(stages.results().top1 == whole.results().top1);
    }
  }
}

}  // namespace
