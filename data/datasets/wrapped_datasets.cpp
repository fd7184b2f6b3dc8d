// Data sets that wrap another one: another augmentation or normalisation, bad images replaced, labels of another list
// of classes, or a part of the images.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/augment/policies.h"
#include "data/threads.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/trainer.h"

namespace dp {
namespace {

// Base class of data sets that wrap another one: every member calls the wrapped data set unless it is overridden.
class ForwardedDataset : public Dataset {
 public:
  explicit ForwardedDataset(std::shared_ptr<const Dataset> whole) : whole_(std::move(whole)) {}

  std::int64_t size() const override { return whole_->size(); }
  Shape image_shape() const override { return whole_->image_shape(); }
  std::int64_t classes() const override { return whole_->classes(); }
  std::vector<std::string> class_names() const override { return whole_->class_names(); }
  const Normalization& normalization() const override { return whole_->normalization(); }
  std::optional<Resizing> resizing() const override { return whole_->resizing(); }
  std::int32_t label(std::int64_t index) const override { return whole_->label(index); }
  bool has_targets() const override { return whole_->has_targets(); }
  void targets(std::int64_t index, std::span<float> out) const override { whole_->targets(index, out); }
  bool has_weights() const override { return whole_->has_weights(); }
  float weight(std::int64_t index) const override { return whole_->weight(index); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    whole_->read(index, out, random);
  }
  Augmentation augmentation() const override { return whole_->augmentation(); }
  bool varies() const override { return whole_->varies(); }
  std::string sample_id(std::int64_t index) const override { return whole_->sample_id(index); }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override { return whole_->passed_over(); }
  std::optional<std::vector<std::string>> replaced() const override { return whole_->replaced(); }
  std::size_t bytes_to_cache() const override { return whole_->bytes_to_cache(); }
  std::size_t bytes_to_read() const override { return whole_->bytes_to_read(); }

 protected:
  const Dataset& whole() const { return *whole_; }

 private:
  std::shared_ptr<const Dataset> whole_;
};

}  // namespace

namespace {

class ChangedAugmentation final : public ForwardedDataset {
 public:
  ChangedAugmentation(std::shared_ptr<const Dataset> dataset, const Augmentation& changes)
      : ForwardedDataset(std::move(dataset)), augmentation_(changed(whole().augmentation(), changes)) {
    require_valid(augmentation_, image_shape());
  }
  Augmentation augmentation() const override { return augmentation_; }

 private:
  Augmentation augmentation_;
};

}  // namespace

std::shared_ptr<const Dataset> with_augmentation(std::shared_ptr<const Dataset> dataset, const Augmentation& changes) {
  return std::make_shared<ChangedAugmentation>(std::move(dataset), changes);
}

// Images that cannot be read: found beforehand, or replaced while training.

namespace {

// Reads another image in place of one that cannot be read: the next readable one of the same class, in the order of the
// data set. So labels, sizes and the order of samples stay as they are, and the replacement depends on the files alone.
class ReplacedImages final : public ForwardedDataset {
 public:
  using ForwardedDataset::ForwardedDataset;

  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    const std::int32_t label = whole().label(index);
    for (std::int64_t step = 0; step < size(); ++step) {
      const std::int64_t candidate = (index + step) % size();
      if (whole().label(candidate) != label || is_bad(candidate)) continue;
      try {
        if (random == nullptr) return whole().read(candidate, out, nullptr);
        Random own = *random;  // so that the random numbers do not depend on failed attempts
        whole().read(candidate, out, &own);
        *random = own;
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::data) throw;
        const std::scoped_lock lock(mutex_);
        bad_.emplace(candidate, error.what());
      }
    }
    const std::scoped_lock lock(mutex_);
    throw Error(ErrorCode::data, bad_.at(index) + "; no other image of its class can be read either");
  }

  std::optional<std::vector<std::string>> replaced() const override {
    std::vector<std::string> faults;
    const std::scoped_lock lock(mutex_);
    for (const auto& [index, fault] : bad_) faults.push_back(fault);
    return faults;
  }

 private:
  bool is_bad(std::int64_t index) const {
    const std::scoped_lock lock(mutex_);
    return bad_.contains(index);
  }

  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::string> bad_;
};

}  // namespace

std::shared_ptr<const Dataset> replace_bad_images(std::shared_ptr<const Dataset> dataset) {
  if (dataset->has_targets())
    throw Error(ErrorCode::usage,
                "--bad-images skip: an image cannot be replaced by one with other targets; remove bad images from the "
                "list");
  return std::make_shared<ReplacedImages>(std::move(dataset));
}

namespace {

// Sums over the bytes of each channel. Whole numbers, so the order of the images does not matter.
struct ChannelSums {
  explicit ChannelSums(const Shape& image)
      : pixels(static_cast<std::size_t>(image[0] > 0 ? image.numel() / image[0] : 0)),
        sums(static_cast<std::size_t>(image[0])),
        squares(sums.size()) {}

  void add(std::span<const std::uint8_t> image) {
    ++images;
    for (std::size_t channel = 0; channel < sums.size(); ++channel)
      for (const std::uint64_t byte : image.subspan(channel * pixels, pixels))
        sums[channel] += byte, squares[channel] += byte * byte;
  }
  void add(const ChannelSums& other) {
    images += other.images;
    for (std::size_t channel = 0; channel < sums.size(); ++channel)
      sums[channel] += other.sums[channel], squares[channel] += other.squares[channel];
  }
  Normalization normalization() const {
    Normalization found;
    const double count = static_cast<double>(images) * static_cast<double>(pixels);
    for (std::size_t channel = 0; channel < sums.size(); ++channel) {
      const double mean = count > 0 ? static_cast<double>(sums[channel]) / count : 0;
      const double square = count > 0 ? static_cast<double>(squares[channel]) / count : 0;
      found.mean.push_back(static_cast<float>(mean / 255));
      found.std.push_back(static_cast<float>(std::sqrt(std::max(0.0, square - mean * mean)) / 255));
    }
    return found;
  }

  std::size_t pixels;  // of an image
  std::uint64_t images = 0;
  std::vector<std::uint64_t> sums, squares;
};

}  // namespace

ImageCheck check_images(const Dataset& dataset, int threads, const std::function<void(std::int64_t)>& on_progress) {
  constexpr std::int64_t kEach = 16;  // images of a thread between two reports
  std::map<std::int64_t, std::string> bad;
  ChannelSums all(dataset.image_shape());
  std::mutex mutex;
  if (threads <= 0) threads = static_cast<int>(process_cores().size());
  const auto image = static_cast<std::size_t>(dataset.image_shape().numel());
  for (std::int64_t begin = 0; begin < dataset.size();) {
    const std::int64_t count = std::min<std::int64_t>(dataset.size() - begin, threads * kEach);
    std::atomic<std::int64_t> next{begin};
    for_ranges(threads, threads, [&](std::int64_t, std::int64_t) {
      std::vector<std::uint8_t> bytes(image);
      ChannelSums own(dataset.image_shape());
      for (std::int64_t index = next++; index < begin + count; index = next++) try {
          dataset.read(index, bytes, nullptr);
          own.add(bytes);
          const std::int32_t label = dataset.label(index);
          if (label < 0 || label >= dataset.classes())
            throw Error(ErrorCode::data, "sample " + std::to_string(index) + " has label " + std::to_string(label) +
                                             ", but there are " + std::to_string(dataset.classes()) + " classes");
        } catch (const Error& error) {
          if (error.code() != ErrorCode::data) throw;
          const std::scoped_lock lock(mutex);
          bad.emplace(index, error.what());
        }
      const std::scoped_lock lock(mutex);
      all.add(own);
    });
    begin += count;
    if (on_progress) on_progress(begin);
  }
  ImageCheck check{{}, all.normalization()};
  for (auto& [index, fault] : bad) check.faults.push_back(std::move(fault));
  return check;
}

// A data set with the labels of another list of classes.

namespace {

using Names = std::vector<std::string>;

class Relabelled final : public ForwardedDataset {
 public:
  Relabelled(std::shared_ptr<const Dataset> images, const Names& classes, std::vector<std::int32_t> labels)
      : ForwardedDataset(std::move(images)), classes_(classes), labels_(std::move(labels)) {}

  std::int64_t classes() const override { return static_cast<std::int64_t>(classes_.size()); }
  std::vector<std::string> class_names() const override { return classes_; }
  std::int32_t label(std::int64_t index) const override {
    const std::int32_t label = whole().label(index);
    const bool valid = label >= 0 && static_cast<std::size_t>(label) < labels_.size();
    return valid ? labels_[static_cast<std::size_t>(label)] : -1;  // the loader rejects it
  }

 private:
  Names classes_;
  std::vector<std::int32_t> labels_;  // by the label of the whole data set
};

std::map<std::string, std::int32_t> numbered(const Names& names) {
  std::map<std::string, std::int32_t> numbers;
  for (const std::string& name : names)
    if (!numbers.emplace(name, static_cast<std::int32_t>(numbers.size())).second)
      throw Error(ErrorCode::usage, "two classes are named '" + printable(name) + "'; give each a name of its own");
  return numbers;
}

std::shared_ptr<const Dataset> relabelled(const std::shared_ptr<const Dataset>& part, const Names& classes) {
  const Names own = part->class_names();
  if (own.empty()) throw Error(ErrorCode::usage, "the data set has no class names, so they cannot be matched");
  numbered(own);
  const auto numbers = numbered(classes);
  std::vector<std::int32_t> labels;
  for (const std::string& name : own) {
    const auto at = numbers.find(name);
    if (at == numbers.end())
      throw Error(ErrorCode::data, "the data set has the class '" + printable(name) + "', which is not among the " +
                                       std::to_string(classes.size()) +
                                       " classes of the weights; rename or remove it, or train a new classifier with "
                                       "--init FILE --init-partial");
    labels.push_back(at->second);
  }
  return std::make_shared<Relabelled>(part, classes, std::move(labels));
}

}  // namespace

DatasetPair with_classes(const DatasetPair& data, const std::vector<std::string>& classes) {
  return {relabelled(data.train, classes), relabelled(data.test, classes)};
}

// A part of a data set.

namespace {

class PartOfDataset final : public ForwardedDataset {
 public:
  // `is_rest`: this part reports the files that are not images; the other part does not.
  PartOfDataset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices, bool is_rest)
      : ForwardedDataset(std::move(whole)), indices_(std::move(indices)), is_rest_(is_rest) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  std::int32_t label(std::int64_t index) const override { return whole().label(at(index)); }
  void targets(std::int64_t index, std::span<float> out) const override { whole().targets(at(index), out); }
  float weight(std::int64_t index) const override { return whole().weight(at(index)); }
  void read(std::int64_t index, std::span<std::uint8_t> out, Random* random) const override {
    whole().read(at(index), out, random);
  }
  std::string sample_id(std::int64_t index) const override { return whole().sample_id(at(index)); }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override {
    return is_rest_ ? whole().passed_over() : std::vector<std::pair<std::string, std::int64_t>>();
  }

 private:
  std::int64_t at(std::int64_t index) const { return indices_[static_cast<std::size_t>(index)]; }

  std::vector<std::int64_t> indices_;
  bool is_rest_;
};

}  // namespace

DatasetPair split_off(const std::shared_ptr<const Dataset>& dataset, double share, std::uint64_t seed) {
  if (!(share > 0 && share < 1))
    throw Error(ErrorCode::usage,
                "the share of the images for testing is " + std::to_string(share) + "; give a number between 0 and 1");
  // The images of each class, with a random key.
  using Keyed = std::pair<std::uint64_t, std::int64_t>;
  std::map<std::int32_t, std::vector<Keyed>> classes;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    Random random(seed, RandomUse::split, static_cast<std::uint64_t>(i));
    const std::uint64_t high = random.next(), low = random.next();
    classes[dataset->label(i)].push_back({high << 32 | low, i});
  }
  std::vector<std::int64_t> train, test;
  for (auto& [label, images] : classes) {
    std::sort(images.begin(), images.end());
    const auto count = static_cast<std::int64_t>(images.size());
    const std::int64_t tested =
        count == 1 ? 0 : std::clamp<std::int64_t>(std::llround(share * static_cast<double>(count)), 1, count - 1);
    for (std::int64_t i = 0; i < count; ++i)
      (i < tested ? test : train).push_back(images[static_cast<std::size_t>(i)].second);
  }
  if (test.empty())
    throw Error(ErrorCode::data,
                "no class has two images, so that none is left for testing; add images, or give a test "
                "set");
  std::sort(train.begin(), train.end());
  std::sort(test.begin(), test.end());
  return {std::make_shared<PartOfDataset>(dataset, std::move(train), true),
          std::make_shared<PartOfDataset>(dataset, std::move(test), false)};
}

// Another normalisation.

namespace {

class NormalizedImages final : public ForwardedDataset {
 public:
  NormalizedImages(std::shared_ptr<const Dataset> whole, Normalization normalization)
      : ForwardedDataset(std::move(whole)), normalization_(std::move(normalization)) {
    const auto channels = static_cast<std::size_t>(image_shape()[0]);
    const bool fits = normalization_.mean.size() == channels && normalization_.std.size() == channels &&
                      std::ranges::all_of(normalization_.mean, [](float mean) { return std::isfinite(mean); }) &&
                      std::ranges::all_of(normalization_.std, [](float std) { return std::isfinite(std) && std > 0; });
    if (!fits)
      throw Error(ErrorCode::usage, "images of " + std::to_string(channels) +
                                        " channels need as many means and positive deviations; dp_train check-data "
                                        "measures them");
  }
  const Normalization& normalization() const override { return normalization_; }

 private:
  Normalization normalization_;
};

}  // namespace

DatasetPair with_normalization(const DatasetPair& data, const Normalization& normalization) {
  return {std::make_shared<NormalizedImages>(data.train, normalization),
          std::make_shared<NormalizedImages>(data.test, normalization)};
}

}  // namespace dp
