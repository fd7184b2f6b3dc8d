#include "kernels/layer_calls.h"

#include <functional>

#include "support/catch.h"

namespace dp::test {
namespace {

using namespace dp::kernels;

// The layout to request. `chained`: the layout that a plan would prescribe.
Layout asked(OpRig& rig, Layouts layouts, const Shape& shape, const Layout& chained = {}) {
  if (layouts == Layouts::plain) return rig.plain(shape);
  return layouts == Layouts::chained ? chained : Layout{};
}

// Convolutions and linear layers differ only in their descriptors.
struct Descriptors {
  std::function<OpDesc(TensorDesc x, TensorDesc w, TensorDesc y)> forward;
  std::function<OpDesc(TensorDesc dy, TensorDesc w, TensorDesc dx)> backward_data;
  std::function<OpDesc(TensorDesc x, TensorDesc dy, TensorDesc dw)> backward_weights;
};

LayerResult weighted_layer(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor* b,
                           const HostTensor& dy, Layouts layouts, const Descriptors& descriptors) {
  const auto want = [&](const Shape& shape, const Layout& chained = {}) {
    return rig.desc(shape, asked(rig, layouts, shape, chained));
  };
  LayerResult result;
  std::optional<DeviceTensor> bias, bias_gradient;
  if (b) {
    bias = upload_plain(rig, *b);
    bias_gradient = rig.poisoned(bias->desc);
  }

  const auto forward = rig.context().make_op(descriptors.forward(want(x.shape), want(w.shape), want(dy.shape)));
  const TensorDesc x_desc = forward->tensors()[0], w_desc = forward->tensors()[1], y_desc = forward->tensors()[2];
  const DeviceTensor device_x = rig.upload(x, x_desc), device_w = rig.upload(w, w_desc), y = rig.poisoned(y_desc);
  rig.run(*forward, {device_x.data(), device_w.data(), data_or_null(bias), y.data()});
  result.y = rig.download(y);

  const DeviceTensor device_dy = rig.upload(dy, y_desc);
  const auto data = rig.context().make_op(
      descriptors.backward_data(want(dy.shape, y_desc.layout), want(w.shape), want(x.shape, x_desc.layout)));
  const DeviceTensor dx = rig.poisoned(data->tensors()[2]);
  rig.run(*data, {rig.relaid(device_dy, data->tensors()[0]).data(), rig.relaid(device_w, data->tensors()[1]).data(),
                  dx.data()});
  result.dx = rig.download(dx);

  const TensorDesc full_w = layouts == Layouts::plain ? rig.plain_full(w.shape) : rig.full(w.shape);
  const auto weights = rig.context().make_op(
      descriptors.backward_weights(want(x.shape, x_desc.layout), want(dy.shape, y_desc.layout), full_w));
  const DeviceTensor dw = rig.poisoned(weights->tensors()[2]);
  rig.run(*weights, {rig.relaid(device_x, weights->tensors()[0]).data(),
                     rig.relaid(device_dy, weights->tensors()[1]).data(), dw.data(), data_or_null(bias_gradient)});
  const TensorDesc arena = rig.full(w.shape, rig.context().with_type(w_desc, rig.context().compute_type()));
  result.dw = rig.download(rig.relaid(dw, arena));  // as in a plan, where parameters have one layout
  if (b) result.db = rig.download(*bias_gradient);
  return result;
}

}  // namespace

const char* to_string(Layouts layouts) {
  return layouts == Layouts::any ? "any" : layouts == Layouts::chained ? "chained" : "plain";
}

std::vector<Layout> layouts_of(OpRig& rig, const Shape& shape) {
  std::vector<Layout> layouts{rig.plain(shape)};
  if (shape.rank() == 4) layouts.push_back(rig.preferred(shape));
  return layouts;
}

LayerResult conv2d(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor* b, const HostTensor& dy,
                   const Window& window, bool relu, Layouts layouts) {
  const bool bias = b != nullptr;
  return weighted_layer(
      rig, x, w, b, dy, layouts,
      {[&](TensorDesc xd, TensorDesc wd, TensorDesc yd) { return Conv2dForward{xd, wd, yd, window, bias, relu}; },
       [&](TensorDesc dyd, TensorDesc wd, TensorDesc dxd) {
         return Conv2dBackwardData{dyd, wd, dxd, window};
       },
       [&](TensorDesc xd, TensorDesc dyd, TensorDesc dwd) {
         return Conv2dBackwardWeights{xd, dyd, dwd, window, bias};
       }});
}

LayerResult linear(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor* b, const HostTensor& dy,
                   bool relu, Layouts layouts) {
  const bool bias = b != nullptr;
  return weighted_layer(rig, x, w, b, dy, layouts,
                        {[&](TensorDesc xd, TensorDesc wd, TensorDesc yd) {
                           return LinearForward{xd, wd, yd, bias, relu};
                         },
                         [&](TensorDesc dyd, TensorDesc wd, TensorDesc dxd) {
                           return LinearBackwardData{dyd, wd, dxd};
                         },
                         [&](TensorDesc xd, TensorDesc dyd, TensorDesc dwd) {
                           return LinearBackwardWeights{xd, dyd, dwd, bias};
                         }});
}

LayerResult max_pool2d(OpRig& rig, const HostTensor& x, const HostTensor& dy, const PoolOptions& options,
                       const std::vector<std::int64_t>& samples, const StepInputs& inputs, Layouts layouts) {
  const Layout x_layout = layouts == Layouts::chained ? rig.preferred(x.shape) : asked(rig, layouts, x.shape);
  const auto forward = rig.context().make_op(MaxPool2dForward{.x = rig.desc(x.shape, x_layout),
                                                              .y = rig.desc(dy.shape, asked(rig, layouts, dy.shape)),
                                                              .window = options.window,
                                                              .relu = options.relu,
                                                              .training = options.training,
                                                              .dropout = options.dropout});
  const TensorDesc x_desc = forward->tensors()[0], y_desc = forward->tensors()[1];
  const auto keys = rig.upload_bytes(samples.data(), samples.size() * sizeof(samples[0]));
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const DeviceTensor device_x = rig.upload(x, x_desc), y = rig.poisoned(y_desc);

  TensorDesc mask_desc{y_desc.shape, DType::u8, y_desc.layout};  // one byte per element, in y's layout
  mask_desc.layout.bytes = y_desc.layout.bytes / rig.context().element_bytes(y_desc.type);
  const DeviceTensor mask = rig.poisoned(mask_desc, 0x7F);  // neither a cell of a window up to 11 nor 255
  const bool drops = options.dropout && options.training;
  rig.run(*forward, {device_x.data(), y.data(), options.training ? mask.data() : nullptr,
                     drops ? keys->data() : nullptr, drops ? step->data() : nullptr});
  LayerResult result;
  result.y = rig.download(y);
  if (!options.training) return result;

  const DeviceTensor device_dy = rig.upload(dy, y_desc);
  const Layout dx_layout = asked(rig, layouts, x.shape, x_desc.layout);
  const auto backward = rig.context().make_op(MaxPool2dBackward{
      .dy = y_desc, .dx = rig.desc(x.shape, dx_layout), .window = options.window, .dropout = options.dropout});
  const DeviceTensor dx = rig.poisoned(backward->tensors()[1]);
  rig.run(*backward, {device_dy.data(), mask.data(), dx.data()});
  result.dx = rig.download(dx);
  return result;
}

LayerResult avg_pool2d(OpRig& rig, const HostTensor& x, const HostTensor& dy, const Window* window, Layouts layouts) {
  const bool adaptive = window == nullptr;
  const Window used = adaptive ? Window{} : *window;
  const Layout x_layout = layouts == Layouts::chained ? rig.preferred(x.shape) : asked(rig, layouts, x.shape);
  const auto forward = rig.context().make_op(
      AvgPool2dForward{rig.desc(x.shape, x_layout), rig.desc(dy.shape, asked(rig, layouts, dy.shape)), used, adaptive});
  const TensorDesc x_desc = forward->tensors()[0], y_desc = forward->tensors()[1];
  const DeviceTensor y = rig.poisoned(y_desc);
  rig.run(*forward, {rig.upload(x, x_desc).data(), y.data()});
  LayerResult result;
  result.y = rig.download(y);
  const auto backward = rig.context().make_op(
      AvgPool2dBackward{rig.desc(dy.shape, asked(rig, layouts, dy.shape, y_desc.layout)),
                        rig.desc(x.shape, asked(rig, layouts, x.shape, x_desc.layout)), used, adaptive});
  const DeviceTensor dx = rig.poisoned(backward->tensors()[1]);
  rig.run(*backward, {rig.upload(dy, backward->tensors()[0]).data(), dx.data()});
  result.dx = rig.download(dx);
  return result;
}

LayerResult resample(OpRig& rig, const HostTensor& x, const HostTensor& dy, const Resampling& how, Layouts layouts) {
  const Layout x_layout = layouts == Layouts::chained ? rig.preferred(x.shape) : asked(rig, layouts, x.shape);
  const auto forward = rig.context().make_op(
      ResampleForward{rig.desc(x.shape, x_layout), rig.desc(dy.shape, asked(rig, layouts, dy.shape)), how});
  const TensorDesc x_desc = forward->tensors()[0], y_desc = forward->tensors()[1];
  const DeviceTensor y = rig.poisoned(y_desc);
  rig.run(*forward, {rig.upload(x, x_desc).data(), y.data()});
  const auto backward =
      rig.context().make_op(ResampleBackward{rig.desc(dy.shape, asked(rig, layouts, dy.shape, y_desc.layout)),
                                             rig.desc(x.shape, asked(rig, layouts, x.shape, x_desc.layout)), how});
  const DeviceTensor dx = rig.poisoned(backward->tensors()[1]);
  rig.run(*backward, {rig.upload(dy, backward->tensors()[0]).data(), dx.data()});
  return {rig.download(y), rig.download(dx), {}, {}};
}

LayerResult channelwise(OpRig& rig, const HostTensor& x, const HostTensor& w, const HostTensor& dy,
                        Channelwise function, const Layout& layout, bool in_place) {
  const std::int64_t numbers = w.shape[0];
  const auto forward = rig.context().make_op(ChannelwiseForward{rig.desc(x.shape, layout), numbers, function});
  const TensorDesc desc = forward->tensors()[0];
  const DeviceTensor from = rig.upload(x, desc), number = upload_plain(rig, w);
  const DeviceTensor y = in_place ? rig.upload(x, desc) : rig.poisoned(desc);
  rig.run(*forward, {in_place ? y.data() : from.data(), number.data(), y.data()});

  const auto backward = rig.context().make_op(ChannelwiseBackward{desc, numbers, function});
  const DeviceTensor there = rig.upload(dy, desc), dw = rig.poisoned(number.desc),
                     dx = in_place ? there : rig.poisoned(desc);
  const bool adds = function == Channelwise::add;
  rig.run(*backward, {there.data(), adds ? nullptr : from.data(), adds ? nullptr : number.data(),
                      adds ? nullptr : dx.data(), dw.data()});
  return {rig.download(y), adds ? dy : rig.download(dx), rig.download(dw), {}};
}

LayerResult softmax(OpRig& rig, const HostTensor& x, const HostTensor& dy, const Layout& layout, bool in_place) {
  const auto forward = rig.context().make_op(SoftmaxForward{rig.desc(x.shape, layout)});
  const TensorDesc desc = forward->tensors()[0];
  const DeviceTensor from = rig.upload(x, desc), y = in_place ? from : rig.poisoned(desc);
  rig.run(*forward, {from.data(), y.data()});
  const auto backward = rig.context().make_op(SoftmaxBackward{desc});
  const DeviceTensor there = rig.upload(dy, desc), dx = in_place ? there : rig.poisoned(desc);
  rig.run(*backward, {there.data(), y.data(), dx.data()});
  return {rig.download(y), rig.download(dx), {}, {}};
}

HostTensor relu_forward(OpRig& rig, const HostTensor& x, const Layout& layout, bool in_place) {
  const auto op = rig.context().make_op(ReluForward{rig.desc(x.shape, layout)});
  const DeviceTensor from = rig.upload(x, op->tensors()[0]), to = in_place ? from : rig.poisoned(from.desc);
  rig.run(*op, {from.data(), to.data()});
  return rig.download(to);
}

HostTensor relu_backward(OpRig& rig, const HostTensor& dy, const HostTensor& y, const Layout& layout, bool in_place) {
  const auto op = rig.context().make_op(ReluBackward{rig.desc(y.shape, layout)});
  const DeviceTensor grad = rig.upload(dy, op->tensors()[0]), out = rig.upload(y, op->tensors()[0]);
  const DeviceTensor dx = in_place ? grad : rig.poisoned(grad.desc);
  rig.run(*op, {grad.data(), out.data(), dx.data()});
  return rig.download(dx);
}

HostTensor function_forward(OpRig& rig, const HostTensor& x, const Function& function, const Layout& layout,
                            bool in_place) {
  const auto op = rig.context().make_op(FunctionForward{rig.desc(x.shape, layout), function});
  const DeviceTensor from = rig.upload(x, op->tensors()[0]), to = in_place ? from : rig.poisoned(from.desc);
  rig.run(*op, {from.data(), to.data()});
  return rig.download(to);
}

HostTensor function_backward(OpRig& rig, const HostTensor& dy, const HostTensor& x, const Function& function,
                             const Layout& layout, bool in_place) {
  const auto op = rig.context().make_op(FunctionBackward{rig.desc(x.shape, layout), function});
  const DeviceTensor grad = rig.upload(dy, op->tensors()[0]), argument = rig.upload(x, op->tensors()[0]);
  const DeviceTensor dx = in_place ? grad : rig.poisoned(grad.desc);
  rig.run(*op, {grad.data(), argument.data(), dx.data()});
  return rig.download(dx);
}

HostTensor add(OpRig& rig, const HostTensor& a, const HostTensor& b, bool relu, const Layout& layout, bool in_place) {
  const auto op = rig.context().make_op(AddForward{rig.desc(a.shape, layout), relu});
  const DeviceTensor first = rig.upload(a, op->tensors()[0]), second = rig.upload(b, op->tensors()[0]);
  const DeviceTensor y = in_place ? first : rig.poisoned(first.desc);
  rig.run(*op, {first.data(), second.data(), y.data()});
  return rig.download(y);
}

Products multiply(OpRig& rig, const HostTensor& x, const HostTensor& s, const HostTensor& dy, const Layout& layout,
                  bool in_place) {
  const auto forward = rig.context().make_op(MultiplyForward{rig.desc(x.shape, layout), rig.desc(s.shape)});
  const TensorDesc x_desc = forward->tensors()[0], s_desc = forward->tensors()[1];
  const DeviceTensor factor = rig.upload(s, s_desc);
  DeviceTensor from = rig.upload(x, x_desc), y = in_place ? from : rig.poisoned(x_desc);
  rig.run(*forward, {from.data(), factor.data(), y.data()});
  from = rig.upload(x, x_desc);

  const auto backward = rig.context().make_op(MultiplyBackward{x_desc, s_desc});
  const auto gradients = [&](bool wants_dx, bool wants_ds) {
    const DeviceTensor dy_there = rig.upload(dy, x_desc), ds = rig.poisoned(s_desc),
                       dx = in_place ? dy_there : rig.poisoned(x_desc);
    rig.run(*backward, {dy_there.data(), from.data(), factor.data(), wants_dx ? dx.data() : nullptr,
                        wants_ds ? ds.data() : nullptr});
    return Products{{}, wants_dx ? rig.download(dx) : HostTensor{}, wants_ds ? rig.download(ds) : HostTensor{}};
  };
  Products all = gradients(true, true);
  CHECK(gradients(true, false).dx.values == all.dx.values);
  CHECK(gradients(false, true).ds.values == all.ds.values);
  all.y = rig.download(y);
  return all;
}

HostTensor drop_factors(OpRig& rig, std::int64_t channels, const DropoutSpec& spec, bool whole_samples,
                        const std::vector<std::int64_t>& samples, const StepInputs& inputs) {
  const Shape shape{static_cast<std::int64_t>(samples.size()), channels, 1, 1};
  const auto op = rig.context().make_op(DropFactors{rig.desc(shape), spec, whole_samples});
  const auto keys = rig.upload_bytes(samples.data(), samples.size() * sizeof(samples[0]));
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const DeviceTensor y = rig.poisoned(op->tensors()[0]);
  rig.run(*op, {keys->data(), step->data(), y.data()});
  return rig.download(y);
}

HostTensor copy_channels(OpRig& rig, const HostTensor& x, const HostTensor& y, const Channels& channels,
                         const Layout& x_layout, const Layout& y_layout) {
  const auto op =
      rig.context().make_op(CopyChannels{rig.desc(x.shape, x_layout), rig.desc(y.shape, y_layout), channels.from,
                                         channels.to, channels.count, channels.from_step, channels.to_step});
  const DeviceTensor to = rig.upload(y, op->tensors()[1]);
  rig.run(*op, {rig.upload(x, op->tensors()[0]).data(), to.data()});
  return rig.download(to);
}

HostTensor dropout(OpRig& rig, const HostTensor& x, const DropoutSpec& spec, const std::vector<std::int64_t>& samples,
                   const StepInputs& inputs, const Layout& layout, bool in_place) {
  const auto op = rig.context().make_op(DropoutApply{rig.desc(x.shape, layout), spec});
  const auto keys = rig.upload_bytes(samples.data(), samples.size() * sizeof(samples[0]));
  const auto step = rig.upload_bytes(&inputs, sizeof inputs);
  const DeviceTensor from = rig.upload(x, op->tensors()[0]), to = in_place ? from : rig.poisoned(from.desc);
  rig.run(*op, {from.data(), to.data(), keys->data(), step->data()});
  return rig.download(to);
}

Shape window_output(const Shape& x, std::int64_t channels, const Window& window) {
  const auto size = [&](std::int64_t input, int HW::*side) {
    const std::int64_t covered = window.dilation.*side * (window.kernel.*side - 1) + 1;
    return (input + 2 * window.padding.*side + window.more_behind.*side - covered) / window.stride.*side + 1;
  };
  return {x[0], channels, size(x[2], &HW::h), size(x[3], &HW::w)};
}

}  // namespace dp::test
