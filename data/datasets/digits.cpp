#include "data/datasets/digits.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "data/datasets/digit_pen.h"
#include "dp/error.h"
#include "dp/random.h"

namespace dp {
namespace {

// Each image is drawn when it is first read, and kept.
class Digits final : public Dataset {
 public:
  Digits(DigitsPart part, std::int64_t count, std::uint64_t seed)
      : part_(part),
        seed_(seed),
        states_(checked(count)),
        pixels_(std::make_unique_for_overwrite<std::uint8_t[]>(states_.size() * kBytes)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(states_.size()); }
  Shape image_shape() const override { return {1, kDigitSide, kDigitSide}; }
  std::int64_t classes() const override { return 10; }
  const Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override {
    Random random = random_of(index);
    return drawn_digit(random);
  }

  void read(std::int64_t index, std::span<std::uint8_t> out, Random*) const override {
    const auto i = static_cast<std::size_t>(index);
    const std::span<std::uint8_t> kept(pixels_.get() + i * kBytes, kBytes);
    if (states_[i].load(std::memory_order_acquire) == State::drawn) {
      std::copy(kept.begin(), kept.end(), out.begin());
      return;
    }
    Random random = random_of(index);
    draw_digit(random, out);
    State missing = State::missing;  // of several threads that draw the same image, one keeps its pixels
    if (!states_[i].compare_exchange_strong(missing, State::taken, std::memory_order_relaxed)) return;
    std::copy_n(out.begin(), kBytes, kept.begin());
    states_[i].store(State::drawn, std::memory_order_release);
  }
  bool varies() const override { return false; }
  std::size_t bytes_to_cache() const override {
    const auto missing = [](const std::atomic<State>& state) { return state.load() == State::missing; };
    return static_cast<std::size_t>(std::count_if(states_.begin(), states_.end(), missing)) * kBytes;
  }

 private:
  enum class State : std::uint8_t { missing, taken, drawn };
  static constexpr std::size_t kBytes = kDigitSide * kDigitSide;

  static std::size_t checked(std::int64_t count) {
    if (count >= 0) return static_cast<std::size_t>(count);
    throw Error(ErrorCode::usage, "digits: the number of images is " + std::to_string(count) + "; give 0 or more");
  }
  Random random_of(std::int64_t index) const {
    return {seed_, RandomUse::digits, static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(part_)};
  }

  DigitsPart part_;
  std::uint64_t seed_;
  Normalization normalization_{{0.1394f}, {0.2845f}};
  mutable std::vector<std::atomic<State>> states_;
  std::unique_ptr<std::uint8_t[]> pixels_;
};

}  // namespace

std::shared_ptr<const Dataset> draw_digits(DigitsPart part, std::int64_t count, std::uint64_t seed) {
  return std::make_shared<Digits>(part, count, seed);
}

namespace datasets {

DatasetPair digits(std::int64_t train, std::int64_t test, std::uint64_t seed) {
  return {draw_digits(DigitsPart::train, train, seed), draw_digits(DigitsPart::test, test, seed)};
}

}  // namespace datasets
}  // namespace dp
