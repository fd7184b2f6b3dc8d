// The image sets that a replica keeps as bytes on its device, and how batches are made of them there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dp/dataset.h"
#include "dp/loader.h"
#include "kernels/backend.h"
#include "kernels/step_state.h"

namespace dp::engine {

// Used by the replica's thread alone; all work goes to one stream.
class DeviceImageSets {
 public:
  DeviceImageSets(kernels::Context& context, kernels::Stream& stream) : context_(context), stream_(stream) {}

  // Brings the set to the device, and makes what batches of so many rows need, unless it was done. Returns the bytes that this took
  // there. Error(usage) on a device that does not compute in float32.
  std::size_t keep(const DeviceImages& images, std::int64_t rows);
  // Enqueues that from now on batches are made of these images, with this key. keep() was called with them.
  void choose(const DeviceImages& images);
  // Enqueues a batch of what was chosen: the same whatever that is. `samples` and `x`, (rows,C,H,W) float32 in row-major order, are
  // the device's. keep() was called with as many rows.
  void gather(const std::int64_t* samples, std::int64_t rows, float* x);

 private:
  struct Kept {
    std::shared_ptr<const ImageSet> set;  // held, so that no other one gets its address
    std::unique_ptr<kernels::Buffer> bytes, statistics;
  };
  const Kept* find(const ImageSet* set) const;
  kernels::Op* gather_of(std::int64_t rows) const;

  kernels::Context& context_;
  kernels::Stream& stream_;
  std::vector<Kept> sets_;
  std::vector<std::pair<std::int64_t, std::unique_ptr<kernels::Op>>>
      gathers_;  // by rows; every set has the model's images
  std::unique_ptr<kernels::Buffer> inputs_;
  kernels::GatherInputs chosen_{};  // what lies there
};

}  // namespace dp::engine
