#include <cstring>

#include "kernels/everywhere.h"
#include "kernels/step_state.h"

namespace {

using namespace dp;
using namespace dp::test;
using namespace dp::kernels;

// Tensors that begin `offset` elements after an aligned address.
class Shifted {
 public:
  Shifted(OpRig& rig, std::int64_t offset) : rig_(rig), offset_(offset), size_(size_of(rig.context().compute_type())) {}

  void* tensor(const std::vector<double>& values) {
    std::vector<unsigned char> bytes((static_cast<std::size_t>(offset_) + values.size()) * size_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      unsigned char* const at = bytes.data() + (static_cast<std::size_t>(offset_) + i) * size_;
      const auto single = static_cast<float>(values[i]);
      if (size_ == sizeof(double))
        std::memcpy(at, &values[i], size_);
      else
        std::memcpy(at, &single, size_);
    }
    buffers_.push_back(rig_.upload_bytes(bytes.data(), bytes.size()));
    return static_cast<unsigned char*>(buffers_.back()->data()) + static_cast<std::size_t>(offset_) * size_;
  }
  void* bytes(const void* data, std::size_t bytes) {
    buffers_.push_back(rig_.upload_bytes(data, bytes));
    return buffers_.back()->data();
  }
  // The elements of the most recent tensor.
  std::vector<unsigned char> latest() {
    std::vector<unsigned char> bytes(buffers_.back()->bytes() - 64);  // without the fence
    rig_.download_bytes(bytes.data(), *buffers_.back(), bytes.size());
    return {bytes.begin() + offset_ * static_cast<std::ptrdiff_t>(size_), bytes.end()};
  }

 private:
  OpRig& rig_;
  std::int64_t offset_;
  std::size_t size_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// call(rig, shifted) returns the bytes that an op wrote. They must not depend on the offset.
template <typename Call>
void same_at_any_address(const Call& call) {
  everywhere([&](OpRig& rig) {
    Shifted aligned(rig, 0);
    const auto expected = call(rig, aligned);
    for (const std::int64_t offset : {1, 2, 3}) {
      Shifted shifted(rig, offset);
      CHECK(call(rig, shifted) == expected);
    }
  });
}

std::vector<double> values(std::int64_t count, std::uint64_t seed) {
  Random random(seed, RandomUse::synthetic);
  return random_tensor({count}, random).values;
}

const Shape kShape{3, 8, 6, 5};
constexpr std::int64_t kCount = 3 * 8 * 6 * 5;

}  // namespace

TEST_CASE("element-wise ops accept tensors that begin at any element") {
  const auto a = values(kCount, 1), b = values(kCount, 2), none = std::vector<double>(kCount);
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *x = at.tensor(a), *y = at.tensor(none);
    rig.run(*rig.context().make_op(ReluForward{rig.desc(kShape, rig.plain(kShape))}), {x, y});
    return at.latest();
  });
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *dy = at.tensor(a), *y = at.tensor(b), *dx = at.tensor(none);
    rig.run(*rig.context().make_op(ReluBackward{rig.desc(kShape, rig.plain(kShape))}), {dy, y, dx});
    return at.latest();
  });
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *first = at.tensor(a), *second = at.tensor(b), *y = at.tensor(none);
    rig.run(*rig.context().make_op(AddForward{rig.desc(kShape, rig.plain(kShape)), true}), {first, second, y});
    return at.latest();
  });
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *x = at.tensor(a), *y = at.tensor(b);
    rig.run(*rig.context().make_op(Accumulate{kCount}), {x, y});
    return at.latest();
  });
}

TEST_CASE("the update accepts ranges that begin at any element") {
  const auto w = values(kCount, 3), g = values(kCount, 4), m = values(kCount, 5);
  StepInputs inputs;
  inputs.update.groups[0] = {.lr = 0.1f, .weight_decay = 0.01f};
  inputs.update.options = {.momentum = 0.9, .nesterov = 1};
  const StepResults results;
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *in = at.bytes(&inputs, sizeof inputs), *out = at.bytes(&results, sizeof results);
    void *gradients = at.tensor(g), *momenta = at.tensor(m), *weights = at.tensor(w);
    rig.run(*rig.context().make_op(OptimizerUpdate{kCount, kind_of(Sgd{.momentum = 0.9f})}),
            {weights, gradients, momenta, nullptr, in, out});
    return at.latest();
  });
  inputs.average_share = 0.1;
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    void *in = at.bytes(&inputs, sizeof inputs), *x = at.tensor(w), *average = at.tensor(m);
    rig.run(*rig.context().make_op(MovingAverage{kCount}), {x, average, in});
    return at.latest();
  });
}

TEST_CASE("layers on images accept tensors that begin at any element") {
  const auto channels = values(8, 7);
  std::vector<double> stats{90};
  for (const double value : values(16, 8)) stats.push_back(2 + value);
  const auto elements = [](const TensorDesc& desc) {  // including the layout's padding
    return static_cast<std::int64_t>(desc.layout.bytes / size_of(desc.type));
  };
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    const TensorDesc desc = rig.desc(kShape, rig.preferred(kShape));
    void *x = at.tensor(values(elements(desc), 6)), *numbers = at.bytes(stats.data(), stats.size() * sizeof(double));
    void *weight = at.tensor(channels), *y = at.tensor(values(elements(desc), 9));
    rig.run(*rig.context().make_op(BatchNormForward{desc, true, false}), {x, numbers, weight, weight, nullptr, y});
    return at.latest();
  });
  same_at_any_address([&](OpRig& rig, Shifted& at) {
    const auto op = rig.context().make_op(MaxPool2dForward{.x = rig.desc(kShape, rig.preferred(kShape)),
                                                           .y = rig.desc({3, 8, 3, 2}),
                                                           .window = {2, 2, 0},
                                                           .training = false});
    void* x = at.tensor(values(elements(op->tensors()[0]), 6));
    void* y = at.tensor(values(elements(op->tensors()[1]), 9));
    rig.run(*op, {x, y, nullptr, nullptr, nullptr});
    return at.latest();
  });
}
