#include "images.h"

#include <dp/error.h>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "command.h"
#include "trainer_options.h"

namespace dp_train {
namespace {

constexpr std::int64_t kMostBytes = 1 << 26;  // per image
constexpr std::int64_t kImages = 60000;

dp::Shape parse_input(const std::string& text) {
  std::int64_t sizes[3] = {};
  const char *at = text.data(), *const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    const bool ends_well = i == 2 ? next == end : next != end && *next == ',';
    if (error != std::errc() || !ends_well || sizes[i] < 1 || sizes[i] > kMostBytes)
      usage("--input '" + text + "' is not C,H,W: channels, rows and columns, each at least 1, such as 3,32,32");
    at = next + 1;
  }
  if (sizes[0] * sizes[1] > kMostBytes || sizes[0] * sizes[1] * sizes[2] > kMostBytes)
    usage("--input " + text + " is too large: an image has at most " + std::to_string(kMostBytes) + " bytes");
  return {sizes[0], sizes[1], sizes[2]};
}

void check_belongs(const Command& command, const std::string& dataset) {
  if (command.bad_images == "skip" && !decodes_files(dataset))
    usage("--bad-images skip requires --dataset imagefolder or imagelist: the files of " + dataset +
          " are checked at the start");
  if (command.image_size && !decodes_files(dataset))
    usage("--image-size requires --dataset imagefolder, imagelist, imagetargets or imageshards, but the data set is " +
          dataset);
  if (command.crop_pct && !decodes_files(dataset))
    usage("--crop-pct requires --dataset imagefolder, imagelist, imagetargets or imageshards, but the data set is " +
          dataset);
  if (command.trainer.augmentation.interpolation && !command.trainer.augment && !decodes_files(dataset))
    usage("--interpolation has no effect with --no-augment: images of " + dataset +
          " are not resized; remove one of both");
  if ((dataset == "digits" || dataset == "synthetic") && command.given.contains("data-path") &&
      !command.given.contains("dataset"))
    usage("--data-path requires --dataset: " + dataset + ", the default, reads no files; add for example " +
          "--dataset imagefolder");
  if (dataset == "synthetic") return;
  for (const auto& [flag, given] :
       {std::pair("--input", command.input.has_value()),
        {"--classes", command.classes && *command.classes != dp::datasets::find(dataset).classes},
        {"--images", command.images.has_value()}})
    if (given) usage(std::string(flag) + " requires --dataset synthetic, but the data set is " + dataset);
}

}  // namespace

bool decodes_files(const std::string& dataset) { return dp::datasets::find(dataset).open_sized != nullptr; }

ImageFormat image_format(const Command& command, const std::string& dataset) {
  check_belongs(command, dataset);
  if (dataset == "synthetic") return {parse_input(command.input.value_or("1,28,28")), command.classes.value_or(10)};
  const dp::datasets::Entry& entry = dp::datasets::find(dataset);
  if (!command.image_size) return {entry.image, entry.classes};
  return {dp::Shape{entry.image[0], *command.image_size, *command.image_size}, entry.classes};
}

dp::DatasetPair match_classes(const Command& command, const dp::TrainerOptions& options, const dp::DatasetPair& data) {
  if (command.classes_from != "data") return data;
  dp::TrainerOptions weights = options;
  weights.output_dir = named_folder(command);
  const std::optional<std::vector<std::string>> classes = dp::recorded_classes(weights);
  if (!classes) return data;  // --resume auto begins a run
  if (classes->empty())
    throw dp::Error(dp::ErrorCode::data, "--classes-from data: '" +
                                             (options.resume.empty() ? options.init : options.resume) +
                                             "' records no class names; leave the option out");
  return dp::with_classes(data, *classes);
}

namespace {

// Applies --mean and --std.
dp::DatasetPair normalized(const Command& command, const dp::DatasetPair& data) {
  if (command.mean.empty() && command.std.empty()) return data;
  dp::Normalization normalization = data.train->normalization();
  if (!command.mean.empty()) normalization.mean.assign(command.mean.begin(), command.mean.end());
  if (!command.std.empty()) normalization.std.assign(command.std.begin(), command.std.end());
  return dp::with_normalization(data, normalization);
}

dp::DatasetPair open_files(const Command& command, const std::string& dataset) {
  if (dataset != "synthetic") {
    std::string folder = command.data_path;
    if (command.bad_images == "skip")  // the record of a resumed run has the same path, so each image is listed once
      folder = std::filesystem::absolute(folder).lexically_normal().string();
    const dp::datasets::Entry& entry = dp::datasets::find(dataset);
    const std::int64_t side = command.image_size.value_or(entry.image[1]);
    dp::Resizing resizing;
    if (command.crop_pct) resizing.crop_pct = *command.crop_pct;
    if (const auto& chosen = command.trainer.augmentation.interpolation) resizing.interpolation = *chosen;
    dp::DatasetPair data;
    if (entry.open_sized == nullptr)
      data = entry.open(folder, command.trainer.parallel.seed);
    else if (command.val_split)
      data.train = entry.open_train(folder, side, resizing);
    else
      data = entry.open_sized(folder, side, resizing);
    if (command.val_split) data = dp::split_off(data.train, *command.val_split, command.trainer.parallel.seed);
    if (command.bad_images == "skip") data = {dp::replace_bad_images(data.train), dp::replace_bad_images(data.test)};
    return data;
  }
  const ImageFormat format = image_format(command, dataset);
  const std::int64_t count = command.images.value_or(kImages);
  const std::uint64_t seed = command.trainer.parallel.seed;
  const dp::DatasetPair data = dp::datasets::synthetic(format.shape, format.classes, count, (count + 5) / 6, seed);
  return command.val_split ? dp::split_off(data.train, *command.val_split, seed) : data;
}

}  // namespace

dp::DatasetPair open_images(const Command& command, const std::string& dataset) {
  check_belongs(command, dataset);
  return normalized(command, open_files(command, dataset));
}

}  // namespace dp_train
