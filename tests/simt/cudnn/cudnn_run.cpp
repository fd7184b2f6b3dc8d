// What a plan of the stand-in for cuDNN does once it runs.
#include <chrono>
#include <cstring>
#include <thread>

#include "simt/cudnn/cudnn_state.h"
#include "simt/low_elements.h"
#include "simt/runtime/devices.h"
#include "simt/runtime/quiet_lock.h"

namespace dp::simt {
namespace {

ElementType element_of(CudnnType type) {
  return type == CudnnType::f32 ? ElementType::f32 : type == CudnnType::bf16 ? ElementType::bf16 : ElementType::f16;
}

// A tensor in memory, by its four indices.
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

// Calls use(place in x, in w, in y) for every product of the convolution.
template <typename Use>
void for_products(const CudnnProgram& program, const View& x, const View& w, const View& y, const Use& use) {
  for (std::int64_t n = 0; n < y.size(0); ++n)
    for (std::int64_t k = 0; k < y.size(1); ++k)
      for (std::int64_t p = 0; p < y.size(2); ++p)
        for (std::int64_t q = 0; q < y.size(3); ++q)
          for (std::int64_t r = 0; r < w.size(2); ++r)
            for (std::int64_t s = 0; s < w.size(3); ++s) {
              const std::int64_t row = p * program.stride[0] + r - program.padding[0];
              const std::int64_t col = q * program.stride[1] + s - program.padding[1];
              if (row < 0 || col < 0 || row >= x.size(2) || col >= x.size(3)) continue;
              for (std::int64_t c = 0; c < x.size(1); ++c)
                use(x.place(n, c, row, col), w.place(k, c, r, s), y.place(n, k, p, q));
            }
}

void compute(const CudnnLaunch& launch) {
  const CudnnProgram& program = *launch.program;
  const bool tf32 = launch.engine == CudnnEngine::tensor_core;
  const View x(program.x, launch.pointers.at(program.x.id), tf32), w(program.w, launch.pointers.at(program.w.id), tf32),
      y(program.y, launch.pointers.at(program.y.id), tf32);
  const View& result = program.direction == CudnnDirection::forward         ? y
                       : program.direction == CudnnDirection::backward_data ? x
                                                                            : w;
  std::vector<double> sums(result.elements());
  for_products(program, x, w, y, [&](std::size_t in_x, std::size_t in_w, std::size_t in_y) {
    switch (program.direction) {
      case CudnnDirection::forward: sums[in_y] += x.at(in_x) * w.at(in_w); return;
      case CudnnDirection::backward_data: sums[in_x] += y.at(in_y) * w.at(in_w); return;
      case CudnnDirection::backward_filter: sums[in_w] += x.at(in_x) * y.at(in_y); return;
    }
  });
  for (std::int64_t a = 0; a < result.size(0); ++a)
    for (std::int64_t b = 0; b < result.size(1); ++b)
      for (std::int64_t c = 0; c < result.size(2); ++c)
        for (std::int64_t d = 0; d < result.size(3); ++d) {
          const std::size_t place = result.place(a, b, c, d);
          auto value = static_cast<float>(sums[place]);
          if (launch.engine == CudnnEngine::wrong) value *= 1.02f;
          if (program.bias)
            value += load(element_of(program.bias->type), launch.pointers.at(program.bias->id),
                          static_cast<std::size_t>(b * program.bias->strides[1]));
          result.set(place, program.relu && value < 0 ? 0 : value);
        }
}

std::vector<TouchedMemory> touched_by(const CudnnLaunch& launch) {
  const CudnnProgram& program = *launch.program;
  const CudnnTensor* const result = program.direction == CudnnDirection::forward         ? &program.y
                                    : program.direction == CudnnDirection::backward_data ? &program.x
                                                                                         : &program.w;
  std::vector<TouchedMemory> touched;
  for (const CudnnTensor* const tensor : program.in_memory())
    touched.push_back({launch.pointers.at(tensor->id), tensor->bytes(), tensor == result});
  if (const std::size_t bytes = workspace_of(launch.engine); bytes > 0)
    touched.push_back({launch.workspace, bytes, true});
  return touched;
}

}  // namespace

void run_cudnn(const ForeignWork& work, int device, std::uint32_t operation) {
  const CudnnLaunch& launch = *static_cast<const CudnnLaunch*>(work.data);
  if (launch.engine == CudnnEngine::slow) std::this_thread::sleep_for(std::chrono::milliseconds(30));
  {
    const QuietAccesses quiet;
    const OpenMemory open(1u << device);
    if (const std::size_t bytes = workspace_of(launch.engine); bytes > 0) std::memset(launch.workspace, 0xEE, bytes);
    compute(launch);
  }
  announce(work, device, operation, touched_by(launch));
}

}  // namespace dp::simt
