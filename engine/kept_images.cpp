#include "engine/kept_images.h"

#include <algorithm>

#include "dp/error.h"

namespace dp::engine {
namespace {

constexpr std::size_t kPiece = 4 << 20;  // of a copy: a stream keeps as much pinned memory for each

}  // namespace

KeptSets::Kept* KeptSets::find(const ImageSet* set) {
  const auto found = std::find_if(sets_.begin(), sets_.end(), [&](const Kept& kept) { return kept.set.get() == set; });
  return found == sets_.end() ? nullptr : &*found;
}

kernels::Op* KeptSets::find(Kept& kept, std::int64_t rows, bool augment) {
  for (const Gather& gather : kept.gathers)
    if (gather.rows == rows && gather.augment == augment) return gather.op.get();
  return nullptr;
}

// Ops only read them.
void* KeptSets::bytes_of(Kept& kept) const {
  return kept.bytes ? kept.bytes->data() : const_cast<void*>(kept.set->images.raw());
}

std::size_t KeptSets::keep(const KeptImages& images, std::int64_t rows) {
  std::size_t taken = 0;
  const auto allocate = [&](std::size_t bytes) {
    taken += bytes;
    return context_.allocate(bytes);
  };
  Kept* kept = find(images.set.get());
  if (kept == nullptr) {
    if (context_.compute_type() != DType::f32)
      throw Error(ErrorCode::usage,
                  to_string(context_.device()) + " does not make its own images; give it batches of images");
    const ImageSet& set = *images.set;
    const auto channels = static_cast<std::size_t>(set.images.shape()[1]);
    if (set.images.dtype() != DType::u8 || set.normalization.mean.size() != channels ||
        set.normalization.std.size() != channels)
      throw Error(ErrorCode::usage,
                  "kept images are bytes, with a mean and a deviation for each channel: take read_images()");
    Kept fresh{images.set, nullptr, nullptr, {}};
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
      inputs_ = allocate(sizeof key_);
      stream_.upload(inputs_->data(), &key_, sizeof key_);
    }
    stream_.synchronize();
    sets_.push_back(std::move(fresh));
    kept = &sets_.back();
  }
  if (find(*kept, rows, images.augment) == nullptr) {
    const Shape shape = images.set->images.shape().without_first().prepended(rows);
    const Augmentation& augmentation = images.set->augmentation;
    kept->gathers.push_back(
        {rows, images.augment,
         context_.make_op(kernels::GatherImages{{shape, DType::f32, context_.plain_layout(shape, DType::f32)},
                                                augmentation.padding,
                                                augmentation.flip,
                                                images.augment})});
  }
  return taken;
}

void KeptSets::gather(const KeptImages& images, const std::int64_t* samples, std::int64_t rows, float* x) {
  if (images.augment && (images.seed != key_.seed || images.epoch != key_.epoch)) {
    key_ = {images.seed, images.epoch};
    stream_.upload(inputs_->data(), &key_, sizeof key_);
  }
  Kept& kept = *find(images.set.get());
  void* const args[] = {bytes_of(kept), const_cast<std::int64_t*>(samples), kept.statistics->data(), inputs_->data(),
                        x};
  find(kept, rows, images.augment)->run(stream_, args, nullptr);
}

}  // namespace dp::engine
