#include "dp/augmentation.h"
#include "dp/random.h"
#include "kernels/device/reference/reference_op.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::reference {
namespace {

class GatherOp final : public ReferenceOp<GatherImages> {
 public:
  explicit GatherOp(const GatherImages& desc) : ReferenceOp(desc, {desc.x}) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GatherImages>(pointers);
    const auto* samples = static_cast<const std::int64_t*>(args.samples);
    const auto& inputs = *static_cast<const GatherInputs*>(args.inputs);
    double* x = f64(args.x);
    const std::int64_t channels = shape(0)[1], rows = shape(0)[2], cols = shape(0)[3];
    for (std::int64_t n = 0; n < shape(0)[0]; ++n) {
      Random random(inputs.seed, RandomUse::augment, inputs.epoch, static_cast<std::uint64_t>(samples[n]));
      const Crop crop = inputs.augment ? draw_crop(random, inputs.padding, inputs.flip) : Crop{};
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::uint8_t* plane = inputs.images + (samples[n] * channels + c) * rows * cols;
        const double mean = inputs.statistics[c], deviation = inputs.statistics[channels + c];
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < cols; ++j) {
            const std::int64_t row = i + crop.down, col = (crop.flip ? cols - 1 - j : j) + crop.right;
            const bool inside = row >= 0 && row < rows && col >= 0 && col < cols;
            *x++ = ((inside ? plane[row * cols + col] : 0) / 255.0 - mean) / deviation;
          }
      }
    }
  }
};

}  // namespace

std::unique_ptr<HostOp> make(const GatherImages& desc) { return std::make_unique<GatherOp>(desc); }

}  // namespace dp::kernels::reference
