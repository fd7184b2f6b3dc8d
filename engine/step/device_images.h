// Image sets that are stored as bytes on a replica's device. Batches are selected, augmented and normalised there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dp/dataset.h"
#include "dp/loader.h"
#include "kernels/device/backend.h"
#include "kernels/step_state.h"

namespace dp::engine {

// Used only by the replica's thread. All work runs on one stream.
class DeviceImageSets {
 public:
  DeviceImageSets(kernels::Context& context, kernels::Stream& stream) : context_(context), stream_(stream) {}

  // Uploads the image set and creates the op for batches of `rows` rows, unless already done. Host-accessible devices
  // read the images in place. Returns the bytes newly allocated on the device. Error(usage) if the device does not
  // compute in float32, if the images are not uint8, or if normalization or padding is invalid.
  std::size_t upload(const DeviceImages& images, std::int64_t rows);
  // Chooses the image set and the augmentation key of later batches, in stream order. Requires upload() with the same
  // images.
  void choose(const DeviceImages& images);
  // Enqueues the work that makes a batch of the chosen image set. The enqueued work does not depend on the choice, so a
  // captured graph can replay it. `samples` (rows) and `x`, (rows,C,H,W) float32 in row-major order, are device memory.
  // Requires upload() with the same number of rows.
  void make_batch(const std::int64_t* samples, std::int64_t rows, float* x);

 private:
  struct ResidentSet {
    std::shared_ptr<const ImageSet> set;  // shared ownership: find() compares addresses, which must stay unique
    std::unique_ptr<kernels::Buffer> bytes, statistics;
  };
  const ResidentSet* find(const ImageSet* set) const;
  kernels::Op* op_for(std::int64_t rows) const;

  kernels::Context& context_;
  kernels::Stream& stream_;
  std::vector<ResidentSet> sets_;
  std::vector<std::pair<std::int64_t, std::unique_ptr<kernels::Op>>>
      ops_;  // by rows; all image sets have the model's image shape
  std::unique_ptr<kernels::Buffer> inputs_;
  kernels::GatherInputs chosen_{};  // current content of inputs_
};

}  // namespace dp::engine
