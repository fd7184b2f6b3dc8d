// The rows of DataParallelOptions: devices, training (label smoothing, seed, averages), precision, pipelines.
#include "engine/step/parallel_option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "dp/error.h"

namespace dp {
namespace {

using Options = DataParallelOptions;
using Table = OptionTable<Options>;

constexpr double kEmaDecay = 0.9998;  // with --model-ema alone
constexpr double kMebibyte = 1048576;

void add_threads_and_watchdog(Table& table) {
  table.group("Devices");
  table
      .add("threads-per-replica", accepts::whole(1, 1024), &Options::threads_per_replica,
           "threads per CPU replica; at most the team that OpenMP allows")
      .unset_at_zero()
      .only_on(DeviceKind::cpu)
      .shown("cores / replicas");
  table.group("Processes");
  table.add("timeout", accepts::number(0, 1e6), &Options::timeout_seconds,
            "abort (exit code 6) after N seconds without progress, or if a rank is missing for so long; 0 disables the "
            "watchdog");
}

using Groups = std::vector<ParameterGroup>;

bool has_no_decay(const Groups& groups) { return std::ranges::any_of(groups, is_no_decay); }
bool is_rated(const ParameterGroup& group) {  // a group of --lr-factor
  return !group.frozen && !group.vectors && !group.weight_decay;
}
// With --no-decay-norm-bias, a group of --lr-factor follows one for its biases and normalisation.
bool is_before_rated(const Groups& groups, std::size_t i) {
  const ParameterGroup& group = groups[i];
  return group.vectors && !group.frozen && group.weight_decay == 0.0f && i + 1 < groups.size() &&
         is_rated(groups[i + 1]) && groups[i + 1].pattern == group.pattern &&
         groups[i + 1].lr_factor == group.lr_factor && has_no_decay(groups);
}

// Changes the groups of --lr-factor and --no-decay-norm-bias together, because the first group that a parameter fits
// counts.
void set_groups(Options& o, const Groups& rated, bool no_decay) {
  Groups groups;
  const auto add_if = [&](const auto& wanted) {
    for (std::size_t i = 0; i < o.parameter_groups.size(); ++i)
      if (wanted(i)) groups.push_back(o.parameter_groups[i]);
  };
  const Groups& old = o.parameter_groups;
  add_if([&](std::size_t i) { return is_frozen_by_name(old[i]); });
  for (const ParameterGroup& group : rated) {
    if (no_decay)
      groups.push_back({.pattern = group.pattern, .vectors = true, .lr_factor = group.lr_factor, .weight_decay = 0.0f});
    groups.push_back(group);
  }
  add_if([&](std::size_t i) { return !is_of_options(old, i); });
  if (no_decay) groups.push_back({.vectors = true, .weight_decay = 0.0f});
  o.parameter_groups = groups;
}

Groups rated_groups(const Options& o) {
  Groups rated;
  std::ranges::copy_if(o.parameter_groups, std::back_inserter(rated), is_rated);
  return rated;
}

Groups read_rates(const std::vector<std::string>& texts) {
  Groups rated;
  for (const std::string& text : texts) {
    const std::size_t at = std::min(text.rfind('='), text.size());
    float factor = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(std::min(text.data() + at + 1, end), end, factor);
    if (at == 0 || read.ec != std::errc() || read.ptr != end || !(factor >= 0) || !std::isfinite(factor))
      throw Error(ErrorCode::usage, "--lr-factor '" + text + "' is not PARAMETERS=FACTOR, such as 'layer1.*=0.1'");
    rated.push_back({.pattern = text.substr(0, at), .lr_factor = factor});
  }
  return rated;
}

void add_parameter_groups(Table& table) {
  table.add(
      "no-decay-norm-bias", accepts::flag(), "no weight decay for biases and normalisation",
      [](const Options& o) { return has_no_decay(o.parameter_groups); },
      [](Options& o, const OptionValue& on) {
        set_groups(o, rated_groups(o), std::get<bool>(on));
        return true;
      });
  table.add(
      "lr-factor", accepts::list(accepts::text("parameters and a factor")),
      "PARAMETERS=FACTOR: multiply the learning rate of parameters with these names, such as 'layer1.*=0.1'; the first "
      "that fits counts",
      [](const Options& o) {
        std::vector<std::string> texts;
        for (const ParameterGroup& group : rated_groups(o))
          texts.push_back(fmt::format("{}={}", group.pattern, group.lr_factor));
        return texts.empty() ? OptionValue{} : OptionValue{texts};
      },
      [](Options& o, const OptionValue& texts) {
        set_groups(o, read_rates(std::get<std::vector<std::string>>(texts)), has_no_decay(o.parameter_groups));
        return true;
      });
  table.add(
      "freeze", accepts::list(accepts::text("parameters")),
      "do not train parameters with these names, such as 'conv1.*'",
      [](const Options& o) {
        std::vector<std::string> patterns;
        for (const ParameterGroup& group : o.parameter_groups)
          if (is_frozen_by_name(group)) patterns.push_back(group.pattern);
        return patterns.empty() ? OptionValue{} : OptionValue{patterns};
      },
      [](Options& o, const OptionValue& patterns) {  // they come first: the first group that a parameter fits counts
        std::erase_if(o.parameter_groups, is_frozen_by_name);
        std::vector<ParameterGroup> groups;
        for (const std::string& pattern : std::get<std::vector<std::string>>(patterns))
          groups.push_back({.pattern = pattern, .frozen = true});
        o.parameter_groups.insert(o.parameter_groups.begin(), groups.begin(), groups.end());
        return true;
      });
}

template <std::size_t... kIndices>
std::vector<std::string> names_of_losses(std::index_sequence<kIndices...>) {
  return {std::variant_alternative_t<kIndices, OutputLoss>::kName...};
}
const std::vector<std::string>& loss_names() {
  static const auto names = names_of_losses(std::make_index_sequence<std::variant_size_v<OutputLoss>>());
  return names;
}

// The loss with this name and its defaults.
template <std::size_t kIndex = 0>
OutputLoss loss_named(const std::string& name) {
  if constexpr (kIndex + 1 < std::variant_size_v<OutputLoss>)
    if (name != std::variant_alternative_t<kIndex, OutputLoss>::kName) return loss_named<kIndex + 1>(name);
  return OutputLoss(std::in_place_index<kIndex>);
}

// A parameter of one kind of loss.
template <typename Kind>
void add_loss_parameter(Table& table, const char* name, const Accepts& accepted, float Kind::*member,
                        const char* help) {
  const std::string kind = Kind::kName;
  table
      .add(
          name, accepted,
          [member](auto& o) {
            auto* const own = o.output_loss ? std::get_if<Kind>(&*o.output_loss) : nullptr;
            return own ? &(own->*member) : nullptr;
          },
          help)
      .needs("--output-loss " + kind, "output-loss")
      .shown(to_text(OptionValue{option_fields::shortest(Kind{}.*member)}));
}

void add_losses(Table& table) {
  table.add(
      "output-loss", accepts::one_of(loss_names()),
      fmt::format("loss of samples that have targets, one for each output, instead of a class: {}",
                  fmt::join(loss_names(), ", ")),
      [](const Options& o) {
        return o.output_loss ? OptionValue{std::string(name_of(*o.output_loss))} : OptionValue{};
      },
      [](Options& o, const OptionValue& name) {
        const auto& wanted = std::get<std::string>(name);
        if (!o.output_loss || wanted != name_of(*o.output_loss)) o.output_loss = loss_named(wanted);
        return true;
      });
  std::string own;
  for (const OwnLoss& loss : losses::registry())
    own += (own.empty() ? ": " : ", ") + loss.name + (loss.note.empty() ? "" : " (" + loss.note + ")");
  table.add(
      "own-loss", accepts::text("the name of a loss that this program has added"),
      "loss of the program's own, which the host computes" + (own.empty() ? "; this program has none" : own),
      [](const Options& o) { return o.own_loss ? OptionValue{o.own_loss->name} : OptionValue{}; },
      [](Options& o, const OptionValue& name) {
        o.own_loss = losses::find(std::get<std::string>(name));
        return true;
      });
  add_loss_parameter(table, "huber-delta", accepts::positive(1e12), &HuberLoss::delta,
                     "distance from the target beyond which the loss grows linearly");
  add_loss_parameter(table, "smooth-l1-beta", accepts::number(0, 1e12), &SmoothL1Loss::beta,
                     "distance from the target below which the loss is quadratic");
  add_loss_parameter(table, "pos-weight", accepts::positive(1e12), &BceWithLogitsLoss::pos_weight,
                     "factor of the loss of positive targets");
  add_loss_parameter(table, "focal-alpha", accepts::number(-1, 1), &FocalLoss::alpha,
                     "weight of positive targets; 1 - alpha is that of the others; negative: no weights");
  add_loss_parameter(table, "focal-gamma", accepts::number(0, 1000), &FocalLoss::gamma,
                     "exponent by which samples that are predicted well count less");
}

void add_training(Table& table) {
  table.group("Training");
  add_parameter_groups(table);
  table.add("grad-accum-steps,--grad-accumulation-steps", accepts::whole(1, 1 << 20), &Options::grad_accum_steps,
            "split each batch into N micro-batches");
  table.add("clip-grad-norm,--clip-grad", accepts::positive(1e12), &Options::clip_grad_norm,
            "clip the gradient to this L2 norm, over all parameters");
  table.add("label-smoothing,--smoothing", accepts::below(0, 1), &Options::label_smoothing,
            "label smoothing of the training loss, in [0, 1); the test loss has none");
  add_losses(table);
  table.add("on-nonfinite", accepts::one_of({"abort", "skip"}), &Options::on_nonfinite,
            "action if the loss or a gradient is NaN or infinite: abort, skip");
  table.add(
      "amp", accepts::flag(), "mixed precision: 16-bit activations and weights, float32 masters",
      [](const Options& o) { return o.amp != Amp::off; },
      [](Options& o, const OptionValue& on) {
        o.amp = std::get<bool>(on) ? Amp::bfloat16 : Amp::off;
        return true;
      });
  table
      .add(
          "amp-dtype", accepts::one_of({"bfloat16", "float16"}),
          "type for --amp: bfloat16, or on GPUs float16 with loss scaling",
          [](const Options& o) {
            return o.amp == Amp::off ? OptionValue{}
                                     : OptionValue{std::string(o.amp == Amp::float16 ? "float16" : "bfloat16")};
          },
          [](Options& o, const OptionValue& type) {
            if (o.amp == Amp::off) return false;
            o.amp = std::get<std::string>(type) == "float16" ? Amp::float16 : Amp::bfloat16;
            return true;
          })
      .needs("--amp", "amp")
      .shown("bfloat16");
  table.add(
      "model-ema", accepts::flag(), "maintain a moving average of the weights and evaluate it as well",
      [](const Options& o) { return o.ema_decay.has_value(); },
      [](Options& o, const OptionValue& on) {
        o.ema_decay = std::get<bool>(on) ? std::optional(kEmaDecay) : std::nullopt;
        return true;
      });
  table
      .add(
          "model-ema-decay", accepts::below(0, 1), [](auto& o) { return o.ema_decay ? &*o.ema_decay : nullptr; },
          "decay of the moving average per step, in [0, 1); update t of the average uses (1 + t) / (10 + t) while that "
          "is lower")
      .needs("--model-ema", "model-ema")
      .shown(to_text(OptionValue{kEmaDecay}));
}

void add_reduction(Table& table) {
  table.group("Data parallelism");
  table.add("reduce", accepts::one_of({"auto", "master", "allreduce", "sharded"}), &Options::reduce,
            "gradient reduction: auto, master, allreduce, sharded");
  table.add(
      "reduce-dtype", accepts::one_of({"float32", "bfloat16"}),
      "data type of the gradient reduction: float32, or bfloat16 (half the bytes, rounded)",
      [](const Options& o) { return std::string(to_string(o.reduce_dtype)); },
      [](Options& o, const OptionValue& type) {
        o.reduce_dtype = std::get<std::string>(type) == "bfloat16" ? DType::bf16 : DType::f32;
        return true;
      });
  table.add("comm", accepts::one_of({"auto", "host", "p2p", "nccl", "mpi"}), &Options::comm,
            "communicator: auto, host (CPU), p2p (GPUs of one process), nccl (distinct GPUs), mpi (CPU, with ddp)");
  table.add("loss", accepts::one_of({"local", "gathered"}), &Options::loss,
            "where the loss is computed: local (on each replica), gathered (on the master)");
  table
      .add(
          "bucket-mb", accepts::positive(1e9), "size of a gradient bucket in MiB",
          [](const Options& o) { return static_cast<double>(o.bucket_bytes) / kMebibyte; },
          [](Options& o, const OptionValue& size) {
            o.bucket_bytes = static_cast<std::size_t>(std::ceil(std::get<double>(size) * kMebibyte));
            return true;
          })
      .unset_at_zero()
      .shown("by model");
  table.add("bn", accepts::one_of({"master", "pooled", "sync"}), &Options::batch_norm,
            "batch normalisation: master (statistics per shard), pooled (running statistics of the whole batch), sync "
            "(statistics of the whole batch)");
  table.add("fold-bn", accepts::one_of({"auto", "always", "never"}), &Options::fold_norms,
            "evaluation: fold batch normalisations into the convolutions before them: auto (not with --deterministic), "
            "always, never");
  table
      .add("logical-shards", accepts::whole(1, 4096), &Options::logical_shards,
           "split each batch into N shards: bit-identical weights for every number of replicas that divides N; "
           "implies --deterministic")
      .unset_at_zero();
}

// "auto" or a whole number.
int micro_batches_from(const std::string& text) {
  constexpr int kMost = 4096;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text != "auto" && (error != std::errc() || end != text.data() + text.size() || number < 1 || number > kMost))
    throw Error(ErrorCode::usage,
                fmt::format("--micro-batches '{}' is neither auto nor a whole number from 1 to {}", text, kMost));
  return number;
}

std::vector<std::string> cuts_from(const std::string& text) {
  std::vector<std::string> cuts;
  for (std::size_t begin = 0; text != "auto" && text != "measured" && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    cuts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return cuts;
}

// A row of an option that applies to pipelines only. `get` and `assign` convert to and from its text.
template <typename Get, typename Assign>
void add_to_pipeline(Table& table, const char* name, Accepts accepts, const char* default_text, const char* help,
                     Get get, Assign assign) {
  table
      .add(
          name, std::move(accepts), help,
          [get](const Options& o) { return o.pipeline.stages > 1 ? OptionValue{get(o.pipeline)} : OptionValue{}; },
          [assign](Options& o, const OptionValue& value) {
            if (o.pipeline.stages > 1) assign(o.pipeline, std::get<std::string>(value));
            return o.pipeline.stages > 1;
          })
      .needs("--pipeline-stages 2 or more", "pipeline-stages")
      .shown(default_text);
}

// A row of an option with a fixed set of values. `names` are those of the enumerators, in their order.
template <typename Enum>
void add_choice_to_pipeline(Table& table, const char* name, const std::vector<std::string>& names,
                            const char* default_text, const char* help, Enum PipelineOptions::*member) {
  add_to_pipeline(
      table, name, accepts::one_of(names), default_text, help,
      [names, member](const PipelineOptions& p) { return names.at(static_cast<std::size_t>(p.*member)); },
      [names, member](PipelineOptions& p, const std::string& text) {
        p.*member = static_cast<Enum>(std::ranges::find(names, text) - names.begin());
      });
}

void add_pipeline(Table& table) {
  constexpr int kMostStages = 64;
  table.group("Pipeline");
  table.add(
      "pipeline-stages", accepts::whole(1, kMostStages), [](auto& o) { return &o.pipeline.stages; },
      "spread the layers of each replica over N devices, for models that are too large for one");
  add_to_pipeline(
      table, "micro-batches", accepts::text("auto, or a number"), "auto",
      "micro-batches of a step on each replica: auto (four per stage), or a number; replaces --grad-accum-steps",
      [](const PipelineOptions& p) { return p.micro_batches == 0 ? "auto" : std::to_string(p.micro_batches); },
      [](PipelineOptions& p, const std::string& text) { p.micro_batches = micro_batches_from(text); });
  add_choice_to_pipeline(table, "schedule", {"none", "gpipe", "1f1b", "zb-h1"}, "1f1b",
                         "order of a pipeline's work: none (one stage at a time), gpipe, 1f1b, zb-h1 (least idle time)",
                         &PipelineOptions::schedule);
  add_to_pipeline(
      table, "pipeline-split", accepts::text("auto, measured, or the first layer of each stage but the first"), "auto",
      "where the stages begin: auto (equal modelled times), measured (equal measured times), or layers such as "
      "layer2.0,layer4.0",
      [](const PipelineOptions& p) -> std::string {
        if (!p.cuts.empty()) return fmt::format("{}", fmt::join(p.cuts, ","));
        return p.measured ? "measured" : "auto";
      },
      [](PipelineOptions& p, const std::string& text) { p.cuts = cuts_from(text), p.measured = text == "measured"; });
  add_choice_to_pipeline(
      table, "recompute", {"none", "stage", "except-last"}, "none",
      "stages that save only their input and compute their activations twice: none, stage (all), except-last",
      &PipelineOptions::recompute);
}

void add_kernels(Table& table) {
  table
      .add("graphs", accepts::one_of({"auto", "always", "never"}), &Options::graphs,
           "GPUs: run training steps as CUDA graphs: auto (not with nccl between several GPUs of a process), always "
           "(or fail), never")
      .only_on(DeviceKind::cuda);
  table.add_off("no-autotune", &Options::autotune, "GPUs: choose kernels by shape, without timing them")
      .only_on(DeviceKind::cuda);
  table.add("exact-conv", accepts::flag(), &Options::exact_convolutions,
            "no faster convolutions with more rounding (CPU: Winograd)");
  table.add("tf32", accepts::flag(), &Options::tf32, "GPUs: allow TF32 in float32 layers where it is faster")
      .only_on(DeviceKind::cuda);
  table.add("check-replicas", accepts::flag(), &Options::check_replicas,
            "check after every step that the replicas are bit-identical");
}

void add_randomness(Table& table) {
  table.group("Randomness and order");
  table.add("seed", accepts::seed(), &Options::seed, "seed of weights, dropout, order and augmentation");
  table.add("deterministic", accepts::flag(), &Options::deterministic,
            "bit-identical runs and resumes on the same devices");
  table.add_off("no-dropout", &Options::dropout, "turn dropout off");
}

Table make() {
  Table table;
  add_threads_and_watchdog(table);
  add_training(table);
  add_reduction(table);
  add_kernels(table);
  add_pipeline(table);
  add_randomness(table);
  return table;
}

}  // namespace

bool is_frozen_by_name(const ParameterGroup& group) { return group.frozen && !group.vectors; }

bool is_no_decay(const ParameterGroup& group) {
  return group.vectors && !group.frozen && group.pattern == "*" && group.weight_decay == 0.0f;
}

bool is_of_options(const std::vector<ParameterGroup>& groups, std::size_t index) {
  const ParameterGroup& group = groups[index];
  return is_frozen_by_name(group) || is_no_decay(group) || is_rated(group) || is_before_rated(groups, index);
}

const Table& parallel_option_table() {
  static const Table table = make();
  return table;
}

}  // namespace dp
