// The measured network, devices and variants.
#include <dp/dataset.h>
#include <dp/default_devices.h>
#include <dp/device.h>
#include <dp/error.h>
#include <dp/models.h>

#include <algorithm>

#include "step.h"

namespace dp_bench {
namespace {

constexpr std::int64_t kInputBytes = 96 << 20;  // of all batches together; more than a cache holds

std::int64_t numbers_per_sample(const Network& network) {
  std::int64_t count = 1;
  for (const std::int64_t size : network.input) count *= size;
  return count;
}

std::vector<std::string> network_arguments(const StepOptions& options) {
  std::vector<std::string> words{"--model",     options.network.model,
                                 "--input",     shape_text(options.network.input, ","),
                                 "--classes",   std::to_string(options.network.classes),
                                 "--batch",     std::to_string(options.run.batch_size),
                                 "--batches",   std::to_string(options.batches),
                                 "--images-on", options.images_on};
  for (const std::string& word : amp_words(options.run)) words.push_back(word);
  if (options.inference) words.emplace_back("--inference");
  return words;
}

std::string first_gpus(const std::string& gpus, int count) {
  std::string text;
  std::size_t at = 0;
  for (int i = 0; i < count; ++i) {
    const std::size_t end = std::min(gpus.find(',', at), gpus.size());
    text += (i ? "," : "") + gpus.substr(at, end - at);
    at = end + 1;
  }
  return text;
}

}  // namespace

Network resolved(Network network) {
  const dp::models::Entry& entry = dp::models::find(network.model);
  const dp::datasets::Entry& images = dp::datasets::find(entry.recipe.dataset);
  if (network.input.empty()) network.input.assign(images.image.dims().begin(), images.image.dims().end());
  if (network.classes == 0) network.classes = images.classes;
  entry.make(dp::Shape(network.input), network.classes);
  return network;
}

std::string shape_text(const std::vector<std::int64_t>& shape, const char* between) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : between) + std::to_string(size);
  return text;
}

std::vector<std::string> amp_words(const dp::TrainerOptions& run) {
  if (run.parallel.amp == dp::Amp::off) return {};
  return {"--amp", run.parallel.amp == dp::Amp::bfloat16 ? "bf16" : "fp16"};
}

std::vector<int> usable_gpus() {
  std::vector<int> ids;
  try {
    for (const dp::Device device : dp::default_devices())
      if (device.kind == dp::DeviceKind::cuda) ids.push_back(device.index);
  } catch (const dp::Error&) {
    return {};
  }
  return ids;
}

void choose_devices(std::string& gpus, int& count, std::size_t least) {
  std::vector<int> ids;
  if (!gpus.empty()) {
    const dp::DeviceProbe probe = dp::probe_devices(dp::DeviceKind::cuda);
    if (probe.count == 0) throw dp::Error(dp::ErrorCode::device, "no usable GPU: " + probe.reason + "; use --cpu N");
    ids = dp::parse_gpu_list(gpus, probe.count);
  } else if (count == 0) {
    ids = usable_gpus();
    if (ids.size() < least) ids.clear(), count = 2;
  }
  if (ids.empty()) return;
  gpus.clear();
  for (const int id : ids) gpus += (gpus.empty() ? "" : ",") + std::to_string(id);
  count = static_cast<int>(ids.size());
}

StepOptions resolved(StepOptions options) {
  options.network = resolved(options.network);
  choose_devices(options.gpus, options.replicas, /*least=*/1);
  const int cores = dp::available_cores().cores;
  if (options.threads == 0) options.threads = std::max(1, cores / options.replicas) * options.replicas;
  if (options.gpus.empty() && options.threads % options.replicas != 0)
    throw dp::Error(dp::ErrorCode::usage, "--threads " + std::to_string(options.threads) +
                                              " is not a multiple of the " + std::to_string(options.replicas) +
                                              " replicas; give a multiple of --cpu");
  if (options.run.batch_size < options.replicas)
    throw dp::Error(dp::ErrorCode::usage, "-b " + std::to_string(options.run.batch_size) + " is less than the " +
                                              std::to_string(options.replicas) +
                                              " replicas; give at least one image per replica");
  if (options.batches == 0)
    options.batches = static_cast<int>(std::clamp<std::int64_t>(
        kInputBytes / (4 * options.run.batch_size * numbers_per_sample(options.network)), 4, 512));
  return options;
}

VariantSpec our_variant(const StepOptions& options, const std::string& key, const std::string& title,
                        const std::string& group, int devices, int threads_each, const std::vector<std::string>& more) {
  const bool gpu = !options.gpus.empty();
  VariantSpec spec{key, title, group, devices, group == "ddp" ? devices : 1, "", network_arguments(options)};
  const auto add = [&](const std::vector<std::string>& words) {
    spec.arguments.insert(spec.arguments.end(), words.begin(), words.end());
  };
  if (gpu)
    add({"--gpus", first_gpus(options.gpus, devices)});
  else
    add({"--cpu", std::to_string(devices), "--threads", std::to_string(threads_each)});
  add({"--variant", group});
  if (options.run.parallel.exact_convolutions) add({"--exact-conv"});
  add(more);
  return spec;
}

std::vector<VariantSpec> variants_for(const StepOptions& options) {
  const int n = options.replicas;
  const bool gpu = !options.gpus.empty();
  const std::string count = " x" + std::to_string(n);
  std::vector<VariantSpec> all;
  const auto ours = [&](const std::string& key, const std::string& title, const std::string& group, int devices,
                        const std::vector<std::string>& more) {
    all.push_back(our_variant(options, key, title, group, devices, std::max(1, options.threads / devices), more));
  };
  if (!options.inference) ours("plan", "bare plan", "plan", 1, {});
  ours("dp1", "dp x1", "dp", 1, {});
  if (n > 1 && options.inference)
    ours("dp", "dp" + count, "dp", n, {});
  else if (n > 1)
    for (const char* reduce : {"sharded", "master", "allreduce"})
      ours(std::string("dp-") + reduce, "dp" + count + " " + reduce, "dp", n, {"--reduce", reduce});

  if (gpu && options.replicas_per_device > 1) {
    const std::string each = std::to_string(options.replicas_per_device);
    ours("dp-virtual", "dp" + count + ", " + each + " replicas each", "dp", n, {"--replicas-per-device", each});
  }
  if (n > 1 && !options.inference) ours("ddp", "ddp" + count, "ddp", n, {});

  const auto pytorch = [&](const std::string& key, const std::string& title, const std::string& variant, int devices,
                           const std::string& format) {
    VariantSpec spec{key, title, "pytorch", devices, variant == "ddp" ? devices : 1, "", network_arguments(options)};
    spec.arguments.insert(spec.arguments.end(), {"--variant", variant, "--memory-format", format, "--threads",
                                                 std::to_string(std::max(1, options.threads / spec.processes))});
    if (gpu) spec.arguments.insert(spec.arguments.end(), {"--gpus", first_gpus(options.gpus, devices)});
    if (variant == "dataparallel" && !gpu) spec.absent = "nn.DataParallel requires GPUs";
    all.push_back(spec);
  };
  pytorch("torch", "PyTorch", "single", 1, "contiguous");
  pytorch("torch-cl", "PyTorch channels_last", "single", 1, "channels_last");
  if (gpu || options.inference) {
    pytorch("torch-compiled", "PyTorch channels_last compiled", "single", 1, "channels_last");
    all.back().arguments.emplace_back("--compile");
  }
  if (gpu && !options.inference) {  // compiles in one minute, where max-autotune takes several
    pytorch("torch-reduce", "PyTorch channels_last reduce-overhead", "single", 1, "channels_last");
    all.back().arguments.insert(all.back().arguments.end(), {"--compile", "reduce-overhead"});
  }
  if (n > 1 && !options.inference) {
    pytorch("torch-dp", "PyTorch nn.DataParallel" + count, "dataparallel", n, "channels_last");
    pytorch("torch-ddp", "PyTorch DDP" + count, "ddp", n, "contiguous");
    pytorch("torch-ddp-cl", "PyTorch DDP" + count + " channels_last", "ddp", n, "channels_last");
  }
  if (options.variants.empty()) return all;

  std::string keys;
  for (const VariantSpec& spec : all) keys += (keys.empty() ? "" : ", ") + spec.key;
  for (const std::string& key : options.variants)
    if (std::none_of(all.begin(), all.end(), [&](const VariantSpec& spec) { return spec.key == key; }))
      throw dp::Error(dp::ErrorCode::usage, "--variants: '" + key + "' is not available here; choose from " + keys);
  std::erase_if(all, [&](const VariantSpec& spec) {
    return std::find(options.variants.begin(), options.variants.end(), spec.key) == options.variants.end();
  });
  return all;
}

double bytes_sent(double bytes, int devices) { return 2.0 * (devices - 1) * bytes; }

double bytes_sent_by_one(double bytes, int devices, const std::string& reduce) {
  return reduce == "master" ? (devices - 1) * bytes : 2.0 * (devices - 1) / devices * bytes;
}

}  // namespace dp_bench
