// Images that cannot be read: found beforehand, or replaced while training.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "data/datasets/forwarded_dataset.h"
#include "data/threads.h"
#include "dp/dataset.h"
#include "dp/error.h"

namespace dp {
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
  return std::make_shared<ReplacedImages>(std::move(dataset));
}

std::vector<std::string> find_bad_images(const Dataset& dataset, int threads,
                                         const std::function<void(std::int64_t)>& on_progress) {
  constexpr std::int64_t kEach = 16;  // images of a thread between two reports
  std::map<std::int64_t, std::string> bad;
  std::mutex mutex;
  if (threads <= 0) threads = static_cast<int>(process_cores().size());
  const auto image = static_cast<std::size_t>(dataset.image_shape().numel());
  for (std::int64_t begin = 0; begin < dataset.size();) {
    const std::int64_t count = std::min<std::int64_t>(dataset.size() - begin, threads * kEach);
    std::atomic<std::int64_t> next{begin};
    for_ranges(threads, threads, [&](std::int64_t, std::int64_t) {
      std::vector<std::uint8_t> bytes(image);
      for (std::int64_t index = next++; index < begin + count; index = next++) try {
          dataset.read(index, bytes, nullptr);
          const std::int32_t label = dataset.label(index);
          if (label < 0 || label >= dataset.classes())
            throw Error(ErrorCode::data, "sample " + std::to_string(index) + " has label " + std::to_string(label) +
                                             ", but there are " + std::to_string(dataset.classes()) + " classes");
        } catch (const Error& error) {
          if (error.code() != ErrorCode::data) throw;
          const std::scoped_lock lock(mutex);
          bad.emplace(index, error.what());
        }
    });
    begin += count;
    if (on_progress) on_progress(begin);
  }
  std::vector<std::string> faults;
  for (auto& [index, fault] : bad) faults.push_back(std::move(fault));
  return faults;
}

}  // namespace dp
