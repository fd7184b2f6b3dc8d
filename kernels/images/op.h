// Batches of a data set that is in the memory of the device.
#pragma once

#include "kernels/op.h"

namespace dp::kernels {

// Makes a batch from a device-resident data set, as a loader does: x = (byte / 255 - mean) / deviation, each operation
// rounded to the compute type. With GatherInputs::augment the image is padded with black pixels, cropped to its
// original size at a random position, and flipped at random. Not part of plans: see engine/step/device_images.h.
// samples: i64 (N), rows of the data set. inputs: GatherInputs.
struct GatherImages {
  static constexpr const char* kName = "gather_images";
  DP_ARGS(samples, inputs, x);
  TensorDesc x;

  void check(const OpCheck& op) const {
    op.compute_type({&x});
    op.rank({&x}, 4);
  }
};
DP_ON_EVERY_BACKEND(GatherImages);

}  // namespace dp::kernels
