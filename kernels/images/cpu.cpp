// GatherImages. A table maps each byte to its normalised value, as in the loader.
#include <array>
#include <memory>

#include "dp/augmentation.h"
#include "dp/random.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels {
namespace {

class GatherOp : public HostOp {
 public:
  GatherOp(const GatherImages& d, const CpuOpOptions& options) {
    tensors_ = {resolved_plain(d.x)};
    view_ = view_of(tensors_[0]);
    threads_ = threads_for(options.threads, static_cast<std::int64_t>(tensors_[0].layout.bytes));
  }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GatherImages>(pointers);
    const auto* samples = static_cast<const std::int64_t*>(args.samples);
    const auto& inputs = *static_cast<const GatherInputs*>(args.inputs);
    const float* const statistics = inputs.statistics;
    auto* x = static_cast<float*>(args.x);
    parallel_ranges(threads_, view_.n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        Random random(inputs.seed, RandomUse::augment, inputs.epoch, static_cast<std::uint64_t>(samples[n]));
        const Crop crop = inputs.augment ? draw_crop(random, inputs.padding, inputs.flip) : Crop{};
        const std::uint8_t* image = inputs.images + samples[n] * view_.c * view_.h * view_.w;
        for (std::int64_t c = 0; c < view_.blocks * view_.block; ++c) {
          float* plane = x + view_.at(n, c / view_.block) + c % view_.block;
          if (c < view_.c)
            copy_plane(image + c * view_.h * view_.w, crop, statistics[c], statistics[view_.c + c], plane);
          else  // padding of the layout
            for (std::int64_t pixel = 0; pixel < view_.h * view_.w; ++pixel) plane[pixel * view_.block] = 0;
        }
      }
    });
  }

 private:
  void copy_plane(const std::uint8_t* bytes, const Crop& crop, float mean, float deviation, float* to) const {
    std::array<float, 256> table;
    for (std::size_t byte = 0; byte < 256; ++byte) table[byte] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
    for (std::int64_t i = 0; i < view_.h; ++i)
      for (std::int64_t j = 0; j < view_.w; ++j, to += view_.block) {
        const std::int64_t row = i + crop.down, col = (crop.flip ? view_.w - 1 - j : j) + crop.right;
        const bool inside = row >= 0 && row < view_.h && col >= 0 && col < view_.w;
        *to = table[inside ? bytes[row * view_.w + col] : 0];
      }
  }

  ActivationView view_;
  int threads_;
};

}  // namespace

std::unique_ptr<HostOp> make(const GatherImages& d, const CpuOpOptions& options) {
  return std::make_unique<GatherOp>(d, options);
}

}  // namespace dp::kernels
