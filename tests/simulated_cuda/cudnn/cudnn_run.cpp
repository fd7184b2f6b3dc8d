// Executes a plan of the simulated cuDNN.
#include <chrono>
#include <cmath>
#include <cstring>
#include <list>

#include "simulated_cuda/cudnn/cudnn_state.h"
#include "simulated_cuda/low_elements.h"
#include "simulated_cuda/runtime/devices.h"
#include "simulated_cuda/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

ElementType element_of(CudnnType type) {
  return type == CudnnType::f32 ? ElementType::f32 : type == CudnnType::bf16 ? ElementType::bf16 : ElementType::f16;
}

// A tensor in memory, indexed by four indices.
class View {
 public:
  View(const CudnnTensor& tensor, void* data, bool to_tf32)
      : tensor_(tensor), data_(data), to_tf32_(to_tf32 && tensor.type == CudnnType::f32) {}
  std::size_t place(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    const auto& s = tensor_.strides;
    return static_cast<std::size_t>(a * s[0] + b * s[1] + c * s[2] + d * s[3]);
  }
  double at(std::size_t place) const {
    const float value = load(element_of(tensor_.type), data_, place);
    return static_cast<double>(to_tf32_ ? rounded_to_tf32(value) : value);
  }
  void set(std::size_t place, float value) const { store(element_of(tensor_.type), data_, place, value); }
  std::int64_t size(std::size_t dimension) const { return tensor_.dimensions[dimension]; }
  std::size_t elements() const { return tensor_.bytes() / bytes_of(tensor_.type); }

 private:
  const CudnnTensor& tensor_;
  void* data_;
  bool to_tf32_;
};

// Calls use(index) for each of a tensor's indices.
template <typename Use>
void for_indices(const View& view, const Use& use) {
  for (std::int64_t a = 0; a < view.size(0); ++a)
    for (std::int64_t b = 0; b < view.size(1); ++b)
      for (std::int64_t c = 0; c < view.size(2); ++c)
        for (std::int64_t d = 0; d < view.size(3); ++d) use(a, b, c, d);
}

// Calls use(offset in x, offset in w, offset in y) for every product of the convolution.
template <typename Use>
void for_products(const CudnnOperation& convolution, const View& x, const View& w, const View& y, const Use& use) {
  for_indices(y, [&](std::int64_t n, std::int64_t k, std::int64_t p, std::int64_t q) {
    for (std::int64_t r = 0; r < w.size(2); ++r)
      for (std::int64_t s = 0; s < w.size(3); ++s) {
        const std::int64_t row = p * convolution.stride[0] + r - convolution.padding[0];
        const std::int64_t col = q * convolution.stride[1] + s - convolution.padding[1];
        if (row < 0 || col < 0 || row >= x.size(2) || col >= x.size(3)) continue;
        for (std::int64_t c = 0; c < x.size(1); ++c)
          use(x.place(n, c, row, col), w.place(k, c, r, s), y.place(n, k, p, q));
      }
  });
}

// Runs the operations of a program one after another, with float32 intermediates.
class Execution {
 public:
  explicit Execution(const CudnnLaunch& launch) : launch_(launch), data_(launch.pointers) {
    for (const auto& [id, tensor] : launch.program->tensors)
      if (tensor.is_virtual) data_[id] = between_.emplace_back(tensor.bytes()).data();
  }

  void run() {
    for (const CudnnOperation& operation : launch_.program->operations)
      if (is_convolution(operation.kind))
        convolve(operation);
      else if (operation.kind == CudnnKind::operation_pointwise)
        pointwise(operation);
      else if (operation.kind == CudnnKind::operation_statistics)
        statistics(operation);
      else
        norm_backward(operation);
  }

 private:
  using A = CudnnAttribute;

  View view(const CudnnOperation& operation, A name) const {
    const std::int64_t id = operation[name];
    return {launch_.program->tensors.at(id), data_.at(id), launch_.engine == CudnnEngine::tensor_core};
  }

  void convolve(const CudnnOperation& operation) const {
    const CudnnConvolutionNames names = names_of(operation.kind);
    const View x = view(operation, names.x), w = view(operation, names.w), y = view(operation, names.y);
    const View& result = operation.kind == CudnnKind::operation_forward         ? y
                         : operation.kind == CudnnKind::operation_backward_data ? x
                                                                                : w;
    std::vector<double> sums(result.elements());
    for_products(operation, x, w, y, [&](std::size_t in_x, std::size_t in_w, std::size_t in_y) {
      if (operation.kind == CudnnKind::operation_forward)
        sums[in_y] += x.at(in_x) * w.at(in_w);
      else if (operation.kind == CudnnKind::operation_backward_data)
        sums[in_x] += y.at(in_y) * w.at(in_w);
      else
        sums[in_w] += x.at(in_x) * y.at(in_y);
    });
    for_indices(result, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      const std::size_t place = result.place(a, b, c, d);
      const auto value = static_cast<float>(sums[place]);
      result.set(place, launch_.engine == CudnnEngine::wrong ? value * 1.02f : value);
    });
  }

  void pointwise(const CudnnOperation& operation) const {
    const bool backward = operation.mode == CudnnPointwise::relu_backward;
    const View x = view(operation, A::operation_pointwise_x),
               y = view(operation, backward ? A::operation_pointwise_dx : A::operation_pointwise_y),
               second = backward                                  ? view(operation, A::operation_pointwise_dy)
                        : operation.has(A::operation_pointwise_b) ? view(operation, A::operation_pointwise_b)
                                                                  : x;
    const bool propagated = operation.nan == CudnnNan::propagated && launch_.engine != CudnnEngine::loses_nan;
    const bool per_channel = second.size(0) != y.size(0) || second.size(2) != y.size(2) || second.size(3) != y.size(3);
    for_indices(y, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      const auto own = static_cast<float>(x.at(x.place(a, b, c, d)));
      const auto other =
          static_cast<float>(second.at(per_channel ? second.place(0, b, 0, 0) : second.place(a, b, c, d)));
      float value = own;
      switch (operation.mode) {
        case CudnnPointwise::add: value = own + other * operation.factor; break;
        case CudnnPointwise::multiply: value = own * other; break;
        case CudnnPointwise::relu: value = own > 0 || (std::isnan(own) && propagated) ? own : 0; break;
        case CudnnPointwise::relu_backward: value = own > 0 ? other : 0; break;
      }
      y.set(y.place(a, b, c, d), value);
    });
  }

  void statistics(const CudnnOperation& operation) const {
    const View x = view(operation, A::statistics_x), sum = view(operation, A::statistics_sum),
               squares = view(operation, A::statistics_squares);
    std::vector<float> sums(sum.elements()), products(sum.elements());
    for_indices(x, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      const auto value = static_cast<float>(x.at(x.place(a, b, c, d)));
      sums[static_cast<std::size_t>(b)] += value, products[static_cast<std::size_t>(b)] += value * value;
    });
    for (std::size_t channel = 0; channel < sums.size(); ++channel)
      sum.set(channel, sums[channel]), squares.set(channel, products[channel]);
  }

  void norm_backward(const CudnnOperation& operation) const {
    const View x = view(operation, A::norm_backward_x), dy = view(operation, A::norm_backward_dy),
               means = view(operation, A::norm_backward_mean), inv_stds = view(operation, A::norm_backward_inv_std);
    std::vector<float> sums(means.elements()), products(means.elements());
    for_indices(x, [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      const auto channel = static_cast<std::size_t>(b);
      const auto gradient = static_cast<float>(dy.at(dy.place(a, b, c, d)));
      const auto xhat = static_cast<float>((x.at(x.place(a, b, c, d)) - means.at(channel)) * inv_stds.at(channel));
      sums[channel] += gradient, products[channel] += gradient * xhat;
    });
    const double n = static_cast<double>(x.size(0) * x.size(2) * x.size(3));
    for (std::size_t channel = 0; channel < sums.size(); ++channel) {
      const double inv_std = inv_stds.at(channel);
      const double factor = view(operation, A::norm_backward_scale).at(channel) * inv_std;
      const double of_x = -factor * inv_std * static_cast<double>(products[channel]) / n;
      view(operation, A::norm_backward_dscale).set(channel, products[channel]);
      view(operation, A::norm_backward_dbias).set(channel, sums[channel]);
      view(operation, A::norm_backward_dy_factor).set(channel, static_cast<float>(factor));
      view(operation, A::norm_backward_x_factor).set(channel, static_cast<float>(of_x));
      view(operation, A::norm_backward_constant)
          .set(channel,
               static_cast<float>(-factor * static_cast<double>(sums[channel]) / n - of_x * means.at(channel)));
    }
  }

  const CudnnLaunch& launch_;
  std::map<std::int64_t, void*> data_;
  std::list<std::vector<std::byte>> between_;
};

std::vector<TouchedMemory> touched_by(const CudnnLaunch& launch) {
  const CudnnProgram& program = *launch.program;
  std::vector<TouchedMemory> touched;
  for (const CudnnTensor* const tensor : program.in_memory())
    touched.push_back({launch.pointers.at(tensor->id), tensor->bytes(), program.written.count(tensor->id) > 0});
  if (const std::size_t bytes = workspace_of(launch.engine); bytes > 0)
    touched.push_back({launch.workspace, bytes, true});
  return touched;
}

}  // namespace

void run_cudnn(const ForeignWork& work, int device, std::uint32_t operation) {
  const CudnnLaunch& launch = *static_cast<const CudnnLaunch*>(work.data);
  {
    const QuietAccesses quiet;
    const OpenMemory open(1u << device);
    if (const std::size_t bytes = workspace_of(launch.engine); bytes > 0) std::memset(launch.workspace, 0xEE, bytes);
    Execution(launch).run();
  }
  announce(work, device, operation, touched_by(launch));
}

}  // namespace dp::simt
