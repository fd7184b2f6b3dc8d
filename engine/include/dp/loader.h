// Minibatches of a dataset, prepared ahead by threads. Their order depends on (seed, epoch) alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dp/dataset.h"
#include "dp/tensor.h"

namespace dp {

// Images that the devices compute from a device-resident image set, with the same values as a loader's.
struct DeviceImages {
  std::shared_ptr<const ImageSet> set;  // null: the batch contains its images
  bool augment = false;                 // with random numbers keyed by (seed, epoch, sample)
  std::uint64_t seed = 0, epoch = 0;
};

// One global minibatch on the host, or one rank's part of it. The loader owns the memory. It is valid until next() has
// been called twice more, or until the loader is destroyed.
struct Batch {
  Tensor images;  // (B,C,H,W) float32, normalised; empty if device-resident
  Tensor labels;  // (B) int32
  // (B) int64: indices in the dataset; part of dropout's random key. With `balanced` or `repeats`, a sample that occurs
  // again in an epoch is its index plus the dataset's size for each time before.
  Tensor samples;
  std::int64_t global = 0;  // samples of all ranks' parts; 0: this is the whole batch
  DeviceImages resident{};  // device-resident data set, indexed by `samples`
  // (B,N) float32, of the N outputs, for DataParallelOptions::output_loss or soft_targets. With sample_weights (B,N+1):
  // the last column has the weights of the samples.
  Tensor targets{};

  std::int64_t size() const {
    const Tensor& rows = resident.set ? samples : images;
    return rows.empty() ? 0 : rows.shape()[0];
  }
  std::int64_t global_size() const { return global ? global : size(); }
};

// Targets that a loader makes from class numbers, for DataParallelOptions::soft_targets. Data sets with targets may
// have sample_weights, too.
struct TargetOptions {
  // torchvision's MixUp and CutMix: image i of a batch is mixed with image B-1-i. The part that an image keeps is drawn
  // for each batch from Beta(alpha, alpha), keyed by (seed, epoch, batch). 0: off; else 0.001 to 4. With both, each
  // batch uses one of them. Ranks mix the images of their own parts.
  double mixup_alpha = 0, cutmix_alpha = 0;
  // Factors of the loss of each class, at least 0; empty: all 1. As torch.nn.CrossEntropyLoss(weight=...): without
  // mixing, the mean over the global batch is weighted.
  std::vector<float> class_weights{};
  float label_smoothing = 0;  // in [0, 1)
  std::int64_t classes = 0;   // numbers for each sample; 0: as many as the data set has classes

  // The weights of the data set's samples, as factors of the loss. They are mixed as images are.
  bool sample_weights = false;

  bool mixes() const { return mixup_alpha > 0 || cutmix_alpha > 0; }
  bool any() const { return mixes() || !class_weights.empty() || sample_weights; }
};

struct LoaderOptions {
  std::int64_t batch_size = 128;  // global
  bool shuffle = true;            // random order, keyed by (seed, epoch)
  // An epoch has as many samples of each class as of the others, to within one; rare classes occur several times, with
  // other augmentation. Its length stays that of the data set.
  bool balanced = false;
  // Each sample of an epoch occurs so often in succession, with other augmentation; the epoch then has fewer samples.
  // This and `balanced` require `shuffle`, and batches with images.
  int repeats = 1;
  bool augment = false;  // as the dataset defines, keyed by (seed, epoch, sample)
  bool drop_last = false;
  std::uint64_t seed = 42;
  int workers = 1;  // threads that prepare batches
  int slots = 4;    // batches prepared ahead, at least 3
  // With several ranks, each takes every ranks-th sample of each global batch, starting at its rank. `pad` fills a
  // short last batch with samples from the start of the epoch until all parts have equal size, as torch's
  // DistributedSampler does; without it some parts may be empty.
  int rank = 0, ranks = 1;
  bool pad = false;
  // The image set, from read_images(), of devices that compute their images; batches then contain no pixels. Null:
  // batches contain images.
  std::shared_ptr<const ImageSet> resident{};
  TargetOptions targets{};  // if any(), batches have targets
  // Called every 50 ms while next() waits, on the calling thread. Once it returns true, next() returns null and no more
  // batches are prepared. Empty: next() waits without a limit.
  std::function<bool()> stop{};
};

class Loader {
 public:
  // Error(usage) for an empty dataset, a dataset smaller than the batch with drop_last, a batch smaller than the number
  // of ranks, or `targets` out of range. Error(device) if a thread cannot be started.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();  // cancels; waits for the images being read, not for whole batches
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Starts `epoch` at batch number `first_batch` (to resume a run). The threads begin to prepare batches at once.
  void start(std::int64_t epoch, std::int64_t first_batch = 0);
  // Returns the next batch of the epoch; null at its end, or if `stop` ended the wait. Rethrows a worker's exception.
  const Batch* next();
  // Waits until the next `count` batches are prepared: at most `slots` - 2, and fewer at the end of the epoch. Rethrows
  // the exception of a worker that failed to prepare one of them. Returns false if `stop` ended the wait.
  bool await(std::int64_t count);

  std::int64_t batches_per_epoch() const;
  std::vector<std::int64_t> batch_sizes() const;  // the sizes that occur, of this rank's parts
  const Dataset& dataset() const;
  DeviceImages resident() const;  // of the batches, without the epoch
  // Samples in the order of `epoch`, as in Batch::samples.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

  // Starts `epoch` and iterates over its batches: `for (const Batch& batch : loader.epoch(3))`.
  class Iterator;
  struct Range;
  Range epoch(std::int64_t epoch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Loader::Iterator {
 public:
  explicit Iterator(Loader* loader) : loader_(loader), batch_(loader ? loader->next() : nullptr) {}
  const Batch& operator*() const { return *batch_; }
  Iterator& operator++() {
    batch_ = loader_->next();
    return *this;
  }
  bool operator!=(const Iterator& end) const { return batch_ != end.batch_; }

 private:
  Loader* loader_;
  const Batch* batch_;
};

struct Loader::Range {
  Loader* loader;
  Iterator begin() const { return Iterator(loader); }
  Iterator end() const { return Iterator(nullptr); }
};

inline Loader::Range Loader::epoch(std::int64_t epoch) {
  start(epoch);
  return {this};
}

}  // namespace dp
