// Runs layers forward and backward on a device, from host tensors to host tensors.
#pragma once

#include <optional>

#include "kernels/op_rig.h"
#include "kernels/step_state.h"

namespace dp::test {

// The layouts of an op's tensors.
enum class Layouts {
  any,      // every op chooses; tensors are reordered between ops
  chained,  // as in a plan: an op's choice is prescribed to the next op
  plain,    // row-major everywhere
};
inline constexpr Layouts kLayouts[] = {Layouts::any, Layouts::chained, Layouts::plain};
const char* to_string(Layouts layouts);

// The row-major layout, and for images the output layout of convolutions.
std::vector<kernels::Layout> layouts_of(OpRig& rig, const Shape& shape);

struct LayerResult {
  HostTensor y, dx, dw, db;  // db is empty without bias
};

// `dy`: gradient of the output before the fused ReLU. `b` may be null.
LayerResult conv2d(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor* b, const HostTensor& dy,
                   const kernels::Window& window, bool relu, Layouts layouts);
LayerResult linear(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor* b, const HostTensor& dy,
                   bool relu, Layouts layouts);

struct PoolOptions {
  kernels::Window window;
  bool relu = false;
  bool training = true;
  std::optional<kernels::DropoutSpec> dropout{};
};
// dx is empty unless training. `samples` and `inputs` are used with dropout only.
LayerResult max_pool2d(OpRig& rig, const HostTensor& x, const HostTensor& dy, const PoolOptions& options,
                       const std::vector<std::int64_t>& samples, const kernels::StepInputs& inputs, Layouts layouts);

// Averages the whole image if `window` is null. Sets y and dx of LayerResult.
LayerResult avg_pool2d(OpRig& rig, const HostTensor& x, const HostTensor& dy, const kernels::Window* window,
                       Layouts layouts);

// In `layout` (resolved), to another buffer or in place.
LayerResult resample(OpRig& rig, const HostTensor& x, const HostTensor& dy, const kernels::Resampling& how,
                     Layouts layouts);
// dx is dy with Channelwise::add.
LayerResult channelwise(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor& dy,
                        kernels::Channelwise function, const kernels::Layout& layout, bool in_place);
LayerResult softmax(OpRig& rig, const HostTensor& x, const HostTensor& dy, const kernels::Layout& layout,
                    bool in_place);
HostTensor relu_forward(OpRig& rig, const HostTensor& x, const kernels::Layout& layout, bool in_place);
HostTensor relu_backward(OpRig& rig, const HostTensor& dy, const HostTensor& y, const kernels::Layout& layout,
                         bool in_place);
HostTensor function_forward(OpRig& rig, const HostTensor& x, const Function& function, const kernels::Layout& layout,
                            bool in_place);
HostTensor function_backward(OpRig& rig, const HostTensor& dy, const HostTensor& x, const Function& function,
                             const kernels::Layout& layout, bool in_place);
HostTensor add(OpRig& rig, const HostTensor& a, const HostTensor& b, bool relu, const kernels::Layout& layout,
               bool in_place);
struct Products {
  HostTensor y, dx, ds;
};
// In `layout` (resolved) of x; y in place on x, dx on dy. dx and ds are also computed alone, with equal bits.
Products multiply(OpRig& rig, const HostTensor& x, const HostTensor& s, const HostTensor& dy,
                  const kernels::Layout& layout, bool in_place);
// The factors of dropped channels or samples.
HostTensor drop_factors(OpRig& rig, std::int64_t channels, const kernels::DropoutSpec& spec, bool whole_samples,
                        const std::vector<std::int64_t>& samples, const kernels::StepInputs& inputs);
struct Channels {
  std::int64_t from = 0, to = 0, count = 0;
  std::int64_t from_step = 1, to_step = 1;
};
// Returns y after the copy. `y`: before it.
HostTensor copy_channels(OpRig& rig, const HostTensor& x, const HostTensor& y, const Channels& channels,
                         const kernels::Layout& x_layout, const kernels::Layout& y_layout);
HostTensor dropout(OpRig& rig, const HostTensor& x, const kernels::DropoutSpec& spec,
                   const std::vector<std::int64_t>& samples, const kernels::StepInputs& inputs,
                   const kernels::Layout& layout, bool in_place);

// Output shape (N, C, H, W) of a window op on input `x`.
Shape window_output(const Shape& x, std::int64_t channels, const kernels::Window& window);

}  // namespace dp::test
