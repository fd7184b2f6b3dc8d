#include "engine/step/device_images.h"

#include <algorithm>
#include <limits>

#include "data/augment/policies.h"
#include "dp/error.h"
#include "kernels/op_args.h"

namespace dp::engine {
namespace {

constexpr std::size_t kPiece = 4 << 20;  // bytes per copy; bounds the pinned staging memory that copies use

}  // namespace

const DeviceImageSets::ResidentSet* DeviceImageSets::find(const ImageSet* set) const {
  const auto found =
      std::find_if(sets_.begin(), sets_.end(), [&](const ResidentSet& resident) { return resident.set.get() == set; });
  return found == sets_.end() ? nullptr : &*found;
}

kernels::Op* DeviceImageSets::op_for(std::int64_t rows) const {
  for (const auto& [number, op] : ops_)
    if (number == rows) return op.get();
  return nullptr;
}

std::size_t DeviceImageSets::upload(const DeviceImages& images, std::int64_t rows) {
  std::size_t taken = 0;
  const auto allocate = [&](std::size_t bytes) {
    taken += bytes;
    return context_.allocate(bytes);
  };
  if (const std::string option = only_on_host(images.set->augmentation); images.augment && !option.empty())
    throw Error(ErrorCode::usage, option + " does not work on device-resident images; give batches of images");
  if (find(images.set.get()) == nullptr) {
    if (context_.compute_type() != DType::f32)
      throw Error(ErrorCode::usage,
                  to_string(context_.device()) + " does not support device-resident images; give it batches of images");
    const ImageSet& set = *images.set;
    const auto channels = static_cast<std::size_t>(set.images.shape()[1]);
    if (set.images.dtype() != DType::u8 || set.normalization.mean.size() != channels ||
        set.normalization.std.size() != channels)
      throw Error(ErrorCode::usage,
                  "device-resident images are bytes, with a mean and a deviation for each channel: use read_images()");
    const auto& deviations = set.normalization.std;
    const std::int64_t padding = set.augmentation.padding.value_or(0);
    if (padding < 0 || padding > std::numeric_limits<std::int32_t>::max() ||
        !std::all_of(deviations.begin(), deviations.end(), [](float value) { return value > 0; }))
      throw Error(ErrorCode::usage,
                  "device-resident images are padded by 0 or more pixels and divided by deviations above 0");
    ResidentSet fresh{images.set, nullptr, nullptr};
    std::vector<float> statistics = set.normalization.mean;
    statistics.insert(statistics.end(), set.normalization.std.begin(), set.normalization.std.end());
    fresh.statistics = allocate(statistics.size() * sizeof(float));
    stream_.copy(fresh.statistics->data(), statistics.data(), statistics.size() * sizeof(float));
    if (!context_.host_accessible()) {
      fresh.bytes = allocate(set.images.bytes());
      for (std::size_t at = 0; at < set.images.bytes(); at += kPiece)
        stream_.copy(static_cast<std::byte*>(fresh.bytes->data()) + at,
                     static_cast<const std::byte*>(set.images.raw()) + at, std::min(kPiece, set.images.bytes() - at));
    }
    if (inputs_ == nullptr) {
      inputs_ = allocate(sizeof chosen_);
      stream_.upload(inputs_->data(), &chosen_, sizeof chosen_);
    }
    stream_.synchronize();
    sets_.push_back(std::move(fresh));
  }
  if (op_for(rows) == nullptr) {
    const Shape shape = images.set->images.shape().without_first().prepended(rows);
    ops_.emplace_back(
        rows, context_.make_op(kernels::GatherImages{{shape, DType::f32, context_.plain_layout(shape, DType::f32)}}));
  }
  return taken;
}

void DeviceImageSets::choose(const DeviceImages& images) {
  const ResidentSet& resident = *find(images.set.get());
  const ImageSet& set = *resident.set;
  const void* const bytes = resident.bytes ? resident.bytes->data() : set.images.raw();
  kernels::GatherInputs inputs{.images = static_cast<const std::uint8_t*>(bytes),
                               .statistics = static_cast<const float*>(resident.statistics->data())};
  if (images.augment) {
    inputs.seed = images.seed;
    inputs.epoch = images.epoch;
    inputs.padding = static_cast<std::int32_t>(set.augmentation.padding.value_or(0));
    inputs.flip = set.augmentation.flip == Flip::random;
    inputs.augment = 1;
  }
  if (inputs == chosen_) return;
  chosen_ = inputs;
  stream_.upload(inputs_->data(), &chosen_, sizeof chosen_);
}

void DeviceImageSets::make_batch(const std::int64_t* samples, std::int64_t rows, float* x) {
  kernels::run_op<kernels::GatherImages>(
      *op_for(rows), stream_, {.samples = const_cast<std::int64_t*>(samples), .inputs = inputs_->data(), .x = x});
}

}  // namespace dp::engine
