// The rows of TrainerOptions. Those of its optimizer and of its DataParallelOptions are in the tables included below.
#include "dp/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "dp/dataset.h"
#include "dp/error.h"
#include "engine/base/split.h"
#include "engine/optimizer/optimizer.h"
#include "engine/step/parallel_option_table.h"

namespace dp {
namespace {

using Options = TrainerOptions;
using Table = OptionTable<Options>;

constexpr std::int64_t kBillion = 1'000'000'000;
constexpr std::int64_t kTraceFirst = 10, kTraceSteps = 10;  // unless --trace-steps is given

void trace_some_steps(Options& o) {
  if (o.parallel.trace_steps == 0) o.parallel.trace_first = kTraceFirst, o.parallel.trace_steps = kTraceSteps;
}

void read_trace_steps(const std::string& text, DataParallelOptions& parallel) {
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, parallel.trace_first);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == ':') {
    const auto count = std::from_chars(first.ptr + 1, end, parallel.trace_steps);
    if (count.ec == std::errc() && count.ptr == end && parallel.trace_first >= 0 && parallel.trace_steps > 0) return;
  }
  throw Error(ErrorCode::usage, "--trace-steps '" + text + "' is not FIRST:COUNT, such as 10:10");
}

void add_training(Table& table) {
  table.group("Model and data");
  std::string names;
  for (const datasets::Entry& entry : datasets::registry())
    names += (names.empty() ? "" : ", ") + entry.name + (entry.note.empty() ? "" : " (" + entry.note + ")");
  table.add("dataset", accepts::text(), &Options::dataset_name, names).shown("by model");
  table.group("Training");
  table.add("batch-size,-b", accepts::whole(1, 1 << 20), &Options::batch_size, "global batch size, per optimizer step");
  table.add("epochs,--num-epochs", accepts::whole(1, kBillion), &Options::epochs, "number of epochs")
      .shown("by data set");
  table
      .add("max-steps", accepts::whole(1, kBillion), &Options::max_steps,
           "stop after N optimizer steps, steps before a resume included")
      .unset_at_zero();
  table.include(engine::optimizer_options(), &Options::optimizer);
  table.include(engine::schedule_options(), &Options::schedule);
}

// "1,500steps,10m": every epoch, every 500 steps, and 10 minutes after the last save.
void read_save_every(const std::string& text, Options& o) {
  const auto refuse = [&] {
    throw Error(ErrorCode::usage,
                fmt::format("--save-every '{}' is not a number of epochs, or a list of numbers with a "
                            "unit, up to {}: 500steps, 90s, 10m, 2h",
                            text, kBillion));
  };
  std::int64_t epochs = 0, steps = 0, seconds = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int64_t count = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, count);
    const std::string_view unit(read.ptr, text.data() + end);
    const std::int64_t factor = unit == "h" ? 3600 : unit == "m" ? 60 : 1;
    const bool time = unit == "s" || unit == "m" || unit == "h";
    std::int64_t& value = time ? seconds : unit == "steps" ? steps : epochs;
    const bool known = time || unit == "steps" || unit.empty() || unit == "epochs";
    if (read.ec != std::errc() || !known || value != 0 || count < (&value == &epochs ? 0 : 1) ||
        count > kBillion / factor)
      refuse();
    value = count * factor;
    begin = end + 1;
  }
  o.save_every_epochs = epochs, o.save_every_steps = steps, o.save_every_seconds = seconds;
}

std::string save_every_text(const Options& o) {
  std::string text;
  const auto add = [&](std::int64_t count, const char* unit) {
    if (count != 0) text += fmt::format("{}{}{}", text.empty() ? "" : ",", count, unit);
  };
  add(o.save_every_epochs, "");
  add(o.save_every_steps, "steps");
  const std::int64_t seconds = o.save_every_seconds;
  seconds % 3600 == 0 ? add(seconds / 3600, "h") : seconds % 60 == 0 ? add(seconds / 60, "m") : add(seconds, "s");
  return text.empty() ? "0" : text;
}

void add_split(Table& table) {
  table.group("Data parallelism");
  table.add(
      "split", accepts::text("balanced, chunk, auto, or a weight for each replica"),
      "shard sizes: balanced (equal), chunk (as torch.chunk), a weight for each replica such as 3:1, auto (by measured "
      "speed)",
      [](const Options& o) { return o.measure_split ? "auto" : engine::split_text(o.parallel); },
      [](Options& o, const OptionValue& text) {
        o.measure_split = std::get<std::string>(text) == "auto";
        engine::read_split(o.measure_split ? "balanced" : std::get<std::string>(text), o.parallel);
        return true;
      });
}

void read_class_weights(const std::string& text, Options& o) {
  o.balance_classes = text == "balanced";
  o.class_weights.clear();
  for (std::size_t begin = 0; !o.balance_classes && begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    float weight = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, weight);
    if (read.ec != std::errc() || read.ptr != text.data() + end || !(weight >= 0) || !std::isfinite(weight))
      throw Error(ErrorCode::usage,
                  "--class-weights '" + text + "' is neither balanced nor a weight for each class, such as 1,0.5,2");
    o.class_weights.push_back(weight);
    begin = end + 1;
  }
}

void add_targets(Table& table) {
  table.group("Training");
  table.add("mixup-alpha,--mixup", accepts::number(0, 4), &Options::mixup_alpha,
            "mix pairs of images and their labels; the parts are drawn from Beta(alpha, alpha); 0: off");
  table.add("cutmix-alpha,--cutmix", accepts::number(0, 4), &Options::cutmix_alpha,
            "paste a box of one image into another, and mix the labels by its area; with --mixup-alpha, each batch has "
            "one of both");
  table.add("sample-weights", accepts::flag(), &Options::sample_weights,
            "multiply the loss of each training image by its sample_weight, which a list of images may have");
  table.add(
      "class-weights", accepts::text("balanced, or a weight for each class such as 1,0.5,2"),
      "factors of the loss of each class; balanced: images / (classes * images of the class)",
      [](const Options& o) {
        if (o.balance_classes) return OptionValue{"balanced"};
        if (o.class_weights.empty()) return OptionValue{};
        std::string text;
        for (const float weight : o.class_weights) text += (text.empty() ? "" : ",") + fmt::format("{}", weight);
        return OptionValue{text};
      },
      [](Options& o, const OptionValue& text) {
        read_class_weights(std::get<std::string>(text), o);
        return true;
      });
}

void add_order(Table& table) {
  table.group("Randomness and order");
  table.add_off("no-augment", &Options::augment, "do not augment training images");
  table.add_off("no-shuffle", &Options::shuffle, "read training images in order");
  table.add("balanced-sampling", accepts::flag(), &Options::balanced_sampling,
            "take equally many samples of each class in an epoch; rare classes occur several times");
  table.add("ra-reps,--aug-repeats", accepts::whole(1, 256), &Options::repeats,
            "repeated augmentation: each image occurs N times in succession, in an epoch of the same length");
  table.add("drop-last", accepts::flag(), &Options::drop_last, "drop the incomplete last batch of an epoch");
  table.add("workers,-j", accepts::whole(1, 256), &Options::workers, "loader threads")
      .unset_at_zero()
      .shown("unused cores, 1 to 4");
  table.add("images-on", accepts::one_of({"auto", "host", "device"}), &Options::images_on,
            "where the data set is stored: host, device (device-resident, as bytes), auto (on GPUs with room)");
}

// One factor, or four numbers with commas between them.
ColorJitter read_jitter(const std::string& text) {
  std::array<float, 4> numbers{};
  std::size_t count = 0;
  const char *at = text.data(), *const end = at + text.size();
  for (bool more = true; more && count < numbers.size(); ++count) {
    const auto [next, error] = std::from_chars(at, end, numbers[count]);
    if (error != std::errc() || (next != end && *next != ',')) break;
    more = next != end;
    at = more ? next + 1 : end;
    if (!more && count == 0) return {numbers[0], numbers[0], numbers[0], 0};
    if (!more && count == 3) return {numbers[0], numbers[1], numbers[2], numbers[3]};
  }
  throw Error(ErrorCode::usage, "--color-jitter '" + text +
                                    "' is neither a factor, such as 0.4, nor BRIGHTNESS,CONTRAST,SATURATION,HUE, such "
                                    "as 0.4,0.4,0.4,0.1");
}

std::string jitter_text(const ColorJitter& jitter) {
  const auto& [brightness, contrast, saturation, hue] = jitter;
  if (hue == 0 && brightness == contrast && contrast == saturation) return fmt::format("{}", brightness);
  return fmt::format("{},{},{},{}", brightness, contrast, saturation, hue);
}

OptionTable<Augmentation> augmentation_options() {
  OptionTable<Augmentation> table;
  // Options that belong to one policy.
  const auto add_of = [&](AutoAugment policy, const std::string& name, auto member, const std::string& option,
                          std::int64_t lowest, std::int64_t highest, std::string help) -> auto& {
    return table
        .add(
            option, accepts::whole(lowest, highest),
            [policy, member](auto& a) { return a.auto_augment == policy ? &(a.*member) : nullptr; }, std::move(help))
        .needs("--auto-augment " + name, "auto-augment");
  };
  table.group(kAugmentationGroup);
  table
      .add("crop-padding", accepts::whole(0, 4096), &Augmentation::padding,
           "pad images by N black pixels on every side, then crop them at random")
      .shown("by data set");
  table
      .add("flip", accepts::one_of({"none", "random", "alternating"}), &Augmentation::flip,
           "horizontal flip: none, random, alternating (every image in every other epoch)")
      .shown("by data set");
  table.add("vflip", accepts::flag(), &Augmentation::vflip, "flip images upside down with probability 1/2");
  table.add("rotation", accepts::number(0, 180), &Augmentation::rotation,
            "rotate images by up to N degrees in both directions");
  table.add("auto-augment", accepts::one_of({"none", "ra", "ta_wide", "augmix"}), &Augmentation::auto_augment,
            "policy: ra (RandAugment), ta_wide (TrivialAugmentWide), augmix (AugMix), or none");
  add_of(AutoAugment::ra, "ra", &Augmentation::ra_ops, "ra-ops", 1, 16, "operations of RandAugment on an image")
      .shown("2");
  add_of(AutoAugment::ra, "ra", &Augmentation::ra_magnitude, "ra-magnitude", 0, 30, "magnitude of RandAugment")
      .shown("9");
  add_of(AutoAugment::augmix, "augmix", &Augmentation::augmix_severity, "augmix-severity", 1, 10, "severity of AugMix")
      .shown("3");
  table.add(
      "color-jitter", accepts::text("a factor, or four numbers"),
      "vary brightness, contrast and saturation by this factor, or by BRIGHTNESS,CONTRAST,SATURATION,HUE",
      [](const Augmentation& a) { return a.color_jitter ? OptionValue{jitter_text(*a.color_jitter)} : OptionValue{}; },
      [](Augmentation& a, const OptionValue& text) {
        a.color_jitter = read_jitter(std::get<std::string>(text));
        return true;
      });
  std::string own;
  for (const OwnAugmentation& each : augmentations::registry())
    own += (own.empty() ? ": " : ", ") + each.name + (each.note.empty() ? "" : " (" + each.note + ")");
  table.add(
      "own-augmentation", accepts::text("the name of an augmentation that this program has added"),
      "augmentation of the program's own" + (own.empty() ? "; this program has none" : own),
      [](const Augmentation& a) { return a.own ? OptionValue{a.own->name} : OptionValue{}; },
      [](Augmentation& a, const OptionValue& name) {
        a.own = augmentations::find(std::get<std::string>(name));
        return true;
      });
  table.add("random-erase", accepts::number(0, 1), &Augmentation::random_erase,
            "probability that a random rectangle of an image is erased");
  table
      .add(
          "interpolation", accepts::one_of({"nearest", "bilinear", "bicubic"}), &Augmentation::interpolation,
          "of image files that are resized, also for evaluations, and of rotated, sheared and shifted images: nearest, "
          "bilinear or bicubic (rotated as bilinear)")
      .shown("bilinear");
  return table;
}

void add_evaluations(Table& table) {
  table.add("eval-every", accepts::whole(0, kBillion), &Options::eval_every,
            "epochs between evaluations; the last epoch is always evaluated; 0: no evaluation");
  table.add("tta", accepts::one_of({"none", "flip", "flip_translate"}), &Options::test_augmentation,
            "test-time augmentation, averages the outputs of: flip (an image and its mirror image), flip_translate "
            "(both, also moved by a pixel), none");
  table
      .add("patience", accepts::whole(1, kBillion), &Options::patience,
           "end the run after N evaluations without a better top-1")
      .unset_at_zero();
}

void add_checkpoints(Table& table) {
  table
      .add("resume", accepts::text("a checkpoint, a run folder, or auto"), &Options::resume,
           "continue from a checkpoint or run folder; auto: from the newest in --output-dir, if any")
      .not_recorded();
  table.add("init", accepts::text("a file"), &Options::init, "initial weights, a safetensors file or PyTorch's .pth");
  table
      .add(
          "init-partial", accepts::flag(), [](auto& o) { return o.init.empty() ? nullptr : &o.init_partial; },
          "load the tensors of --init that fit, and list the others")
      .needs("--init FILE");
  table.add(
      "save-every", accepts::text("a number of epochs, or one with a unit such as 500steps or 10m"),
      "between checkpoints: epochs (1), steps (500steps), time (90s, 10m, 2h), or several of them (1,10m); 0: only "
      "at the end",
      save_every_text, [](Options& o, const OptionValue& text) {
        read_save_every(std::get<std::string>(text), o);
        return true;
      });
  table.add("checkpoint-hist", accepts::whole(0, 1 << 20), &Options::checkpoint_hist,
            "keep the latest N checkpoints as step-<number>");
  table.add("sync-checkpoints", accepts::flag(), &Options::sync_checkpoints,
            "wait until each checkpoint is written, instead of training on");
}

void add_traces(Table& table) {
  const std::string steps = fmt::format("{}:{}", kTraceFirst, kTraceSteps);
  table
      .add(
          "trace", accepts::text("a file"), "write a timeline of --trace-steps to this file, for Perfetto or Chrome",
          [](const Options& o) { return o.trace_file.empty() ? OptionValue{} : OptionValue{o.trace_file}; },
          [](Options& o, const OptionValue& file) {
            o.trace_file = std::get<std::string>(file);
            trace_some_steps(o);
            return true;
          })
      .not_recorded();
  table
      .add(
          "profile", accepts::flag(), "print the time of each layer in --trace-steps, and its lower bound",
          [](const Options& o) { return o.profile; },
          [](Options& o, const OptionValue& on) {
            o.profile = std::get<bool>(on);
            if (o.profile) trace_some_steps(o);
            return true;
          })
      .not_recorded();
  table
      .add(
          "trace-steps", accepts::text(), "FIRST:COUNT, steps of this run, counted from 0",
          [](const Options& o) {
            const DataParallelOptions& p = o.parallel;
            return p.trace_steps == 0 ? OptionValue{} : OptionValue{fmt::format("{}:{}", p.trace_first, p.trace_steps)};
          },
          [](Options& o, const OptionValue& text) {
            if (o.trace_file.empty() && !o.profile) return false;
            read_trace_steps(std::get<std::string>(text), o.parallel);
            return true;
          })
      .needs("--trace or --profile")
      .not_recorded()
      .shown(steps);
}

void add_output(Table& table) {
  table.add("dry-run", accepts::flag(), &Options::dry_run, "one training and one evaluation batch, no files")
      .not_recorded();
  table.add("print-freq,-p,--log-interval", accepts::whole(1, kBillion), &Options::print_freq, "steps between reports")
      .unset_at_zero();
  table
      .add("summary", accepts::text("a file"), &Options::summary_file,
           "write the summary to this file, as one JSON object")
      .not_recorded();
}

Table make() {
  Table table;
  add_training(table);
  table.include(parallel_option_table(), &Options::parallel);
  add_targets(table);
  add_split(table);
  add_order(table);
  table.include(augmentation_options(), &Options::augmentation);
  table.group("The run");
  add_evaluations(table);
  add_checkpoints(table);
  add_traces(table);
  add_output(table);
  return table;
}

}  // namespace

const Table& run_options() {
  static const Table table = make();
  return table;
}

}  // namespace dp
