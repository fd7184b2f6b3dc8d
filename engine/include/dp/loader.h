// Minibatches of a dataset in an order that depends on (seed, epoch) alone, prepared ahead by threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dp/dataset.h"
#include "dp/tensor.h"

namespace dp {

// Images that the devices make themselves of an image set's bytes, as a loader would.
struct DeviceImages {
  std::shared_ptr<const ImageSet> set;  // null: the batch brings its images
  bool augment = false;                 // by (seed, epoch, sample)
  std::uint64_t seed = 0, epoch = 0;
};

// One global minibatch on the host, or a rank's part of it. The memory belongs to the loader's ring: it stays valid until the second
// next batch is taken, or until the loader is destroyed.
struct Batch {
  Tensor images;            // (B,C,H,W) float32, normalised; empty where the devices keep them
  Tensor labels;            // (B) int32
  Tensor samples;           // (B) int64: indices in the dataset, the key of dropout's randomness
  std::int64_t global = 0;  // samples of all ranks' parts together; 0: these are all
  DeviceImages kept{};      // of which `samples` are rows

  std::int64_t size() const {
    const Tensor& rows = kept.set ? samples : images;
    return rows.empty() ? 0 : rows.shape()[0];
  }
  std::int64_t global_size() const { return global ? global : size(); }
};

struct LoaderOptions {
  std::int64_t batch_size = 128;  // global
  bool shuffle = true;            // order keyed by (seed, epoch)
  bool augment = false;           // as the dataset says, keyed by (seed, epoch, sample)
  bool drop_last = false;
  std::uint64_t seed = 42;
  int workers = 1;  // threads that prepare batches
  int slots = 4;    // batches prepared ahead, at least 3
  // A rank of several takes every ranks-th sample of each global batch, from its own number on. `pad`: a short last batch is filled up
  // from the epoch's beginning until all parts are equal, as torch's DistributedSampler does; otherwise some parts of it may be empty.
  int rank = 0, ranks = 1;
  bool pad = false;
  // Batches without pixels, for devices that keep this set, read_images() of the dataset; null: batches of images.
  std::shared_ptr<const ImageSet> kept{};
  // Called every 50 ms while next() waits, on its thread. Once it returns true next() returns null, and nothing more is prepared. Empty:
  // next() waits.
  std::function<bool()> stop{};
};

class Loader {
 public:
  // Error(usage) for an empty dataset, one smaller than the batch under drop_last, or a batch smaller than the number of ranks.
  // Error(device) when a thread can not be started.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();  // waits for the images that are being read, not for their batches
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Starts `epoch` at its batch number `first_batch` (for a resumed run). Preparing begins at once.
  void start(std::int64_t epoch, std::int64_t first_batch = 0);
  // The next batch of the started epoch, or null at its end or when the wait was stopped. An exception of a worker is rethrown here.
  const Batch* next();

  std::int64_t batches_per_epoch() const;
  std::vector<std::int64_t> batch_sizes() const;  // that occur, of this rank's parts
  const Dataset& dataset() const;
  DeviceImages kept() const;  // what the batches' images are made of, but for the epoch
  // The order in which `epoch` visits the samples.
  std::vector<std::int64_t> order(std::int64_t epoch) const;

  // Every batch of epoch 0, 1, 2, ... in a range-for: `for (const Batch& batch : loader.epoch(3))`.
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
