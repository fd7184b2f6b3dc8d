// The update ops but Orthogonalize. The formula of each optimizer is in dp/optimizer.h.
// Compiled without contraction of a*b+c (nvcc -fmad=false, host compilers -ffp-contract=off), so that each new value is
// the same in every build and on the CPU.
#include "kernels/device/cuda/block.h"
#include "kernels/device/cuda/cuda_op.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kFinishThreads = 1024;

__device__ __forceinline__ bool is_finite(double value) { return value - value == 0; }

// `copy`: the 16-bit weights that layers read in mixed precision. It is not used if Copy is float.
template <int kWidth, typename Own, unsigned kSlots, typename Copy>
__global__ void __launch_bounds__(kElementThreads)
    update_kernel(float* weights, const float* gradients, float* state, long long stride, const std::uint8_t* groups,
                  const StepInputs* inputs, StepResults* results, Copy* copy, long long count) {
  constexpr bool kCopies = !std::is_same_v<Copy, float>;
  if (results->skip != 0) return;
  const long long at = first_element<kWidth>();
  if (at >= count) return;
  const UpdateInputs& update = inputs->update;
  const Element<Own, float> element(update, update.groups[groups ? groups[at / kGroupElements] : 0], results->clip,
                                    number_of(update, *results));
  float* const first = slot_of<kSlots, 0>(state, stride);
  float* const second = slot_of<kSlots, 1>(state, stride);
  float* const third = slot_of<kSlots, 2>(state, stride);
  bool finite = true;
  if (at + kWidth <= count) {
    Pack<kWidth> weight = load_pack<kWidth>(weights + at), a{}, b{}, c{};
    const Pack<kWidth> gradient = load_pack<kWidth>(gradients + at);
    if constexpr (kUses<kSlots, 0>) a = load_pack<kWidth>(first + at);
    if constexpr (kUses<kSlots, 1>) b = load_pack<kWidth>(second + at);
    if constexpr (kUses<kSlots, 2>) c = load_pack<kWidth>(third + at);
    for (int k = 0; k < kWidth; ++k) {
      weight.v[k] = element(gradient.v[k], weight.v[k], a.v[k], b.v[k], c.v[k]);
      finite &= is_finite(weight.v[k]);
    }
    store_pack(weights + at, weight);
    if constexpr (kUses<kSlots, 0>) store_pack(first + at, a);
    if constexpr (kUses<kSlots, 1>) store_pack(second + at, b);
    if constexpr (kUses<kSlots, 2>) store_pack(third + at, c);
    if constexpr (kCopies) store_pack(copy + at, weight);
  } else {
    for (long long i = at; i < count; ++i) {
      float a = 0, b = 0, c = 0;
      if constexpr (kUses<kSlots, 0>) a = first[i];
      if constexpr (kUses<kSlots, 1>) b = second[i];
      if constexpr (kUses<kSlots, 2>) c = third[i];
      weights[i] = element(gradients[i], weights[i], a, b, c);
      if constexpr (kUses<kSlots, 0>) first[i] = a;
      if constexpr (kUses<kSlots, 1>) second[i] = b;
      if constexpr (kUses<kSlots, 2>) third[i] = c;
      finite &= is_finite(weights[i]);
      if constexpr (kCopies) copy[i] = from_float<Copy>(weights[i]);
    }
  }
  if (!finite) atomicExch(&results->grad_nonfinite, 1u);
}

// One block per segment.
template <typename Own>
__global__ void __launch_bounds__(kElementThreads)
    direction_kernel(const float* weights, const float* gradients, float* state, long long stride,
                     const std::uint8_t* groups, const StepInputs* inputs, const StepResults* results,
                     const TensorSegment* segments, float* direction, double* partials) {
  if (results->skip != 0) return;
  const TensorSegment segment = segments[blockIdx.x];
  const UpdateInputs& update = inputs->update;
  const SegmentRule<Own, float> rule(update, update.groups[groups ? groups[segment.begin / kGroupElements] : 0],
                                     segment.shape, 1, results->clip, number_of(update, *results));
  double weight_squares = 0, direction_squares = 0;
  for (long long i = segment.begin + threadIdx.x; i < segment.begin + segment.count; i += kElementThreads) {
    const float weight = weights[i];
    float first = state[i], second = state[i + stride];
    const float u = rule.direction(gradients[i], weight, first, second);
    state[i] = first, state[i + stride] = second, direction[i] = u;
    weight_squares += static_cast<double>(weight) * static_cast<double>(weight);
    direction_squares += static_cast<double>(u) * static_cast<double>(u);
  }
  if constexpr (kTensorWork<Own> == TensorWork::trust_ratio) {
    weight_squares = block_sum<kElementThreads>(weight_squares);
    __syncthreads();
    direction_squares = block_sum<kElementThreads>(direction_squares);
    if (threadIdx.x == 0) {
      partials[2 * blockIdx.x] = weight_squares;
      partials[2 * blockIdx.x + 1] = direction_squares;
    }
  }
}

// One block per tensor.
__global__ void __launch_bounds__(kElementThreads)
    trust_ratios_kernel(const double* partials, const std::int64_t* first, double* ratios) {
  double weight_squares = 0, direction_squares = 0;
  for (std::int64_t s = first[blockIdx.x] + threadIdx.x; s < first[blockIdx.x + 1]; s += kElementThreads)
    weight_squares += partials[2 * s], direction_squares += partials[2 * s + 1];
  weight_squares = block_sum<kElementThreads>(weight_squares);
  __syncthreads();
  direction_squares = block_sum<kElementThreads>(direction_squares);
  if (threadIdx.x == 0) ratios[blockIdx.x] = trust_ratio(weight_squares, direction_squares);
}

// One block per segment. `copy`: as for update_kernel.
template <typename Own, typename Copy>
__global__ void __launch_bounds__(kElementThreads)
    apply_direction_kernel(float* weights, const float* direction, const std::uint8_t* groups, const StepInputs* inputs,
                           StepResults* results, const TensorSegment* segments, const double* ratios, Copy* copy) {
  if (results->skip != 0) return;
  const TensorSegment segment = segments[blockIdx.x];
  const UpdateInputs& update = inputs->update;
  const double ratio = kTensorWork<Own> == TensorWork::trust_ratio ? ratios[segment.tensor] : 1;
  const SegmentRule<Own, float> rule(update, update.groups[groups ? groups[segment.begin / kGroupElements] : 0],
                                     segment.shape, ratio, results->clip, number_of(update, *results));
  bool finite = true;
  for (long long i = segment.begin + threadIdx.x; i < segment.begin + segment.count; i += kElementThreads) {
    const float weight = rule.applied(weights[i], direction[i]);
    weights[i] = weight;
    finite &= is_finite(weight);
    if constexpr (!std::is_same_v<Copy, float>) copy[i] = from_float<Copy>(weight);
  }
  if (!finite) atomicExch(&results->grad_nonfinite, 1u);
}

template <int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    moving_average_kernel(const float* x, float* average, const StepInputs* inputs, long long count) {
  const float share = static_cast<float>(inputs->average_share);
  map_elements<kWidth>(x, average, average, count,
                       [=](float value, float mean) { return mean + share * (value - mean); });
}

// One block per kNormBlock elements.
template <int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    grad_norm_partials_kernel(const float* x, double* partials, long long count) {
  constexpr int kEach = kNormBlock / kElementThreads;
  static_assert(kEach == 4, "one pack for each thread");
  const long long first = first_element<kEach>();
  double sum = 0;
  if (first + kEach <= count) {
    for (int k = 0; k < kEach; k += kWidth) {
      const Pack<kWidth> values = load_pack<kWidth>(x + first + k);
      for (const float value : values.v) sum += static_cast<double>(value) * static_cast<double>(value);
    }
  } else {
    for (long long i = first; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  sum = block_sum<kElementThreads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

struct Scaling {
  float growth, backoff;
  unsigned interval;
};

// Returns scale * factor, or `scale` if the product is not finite or is below the smallest normal float.
__device__ __forceinline__ float adapted(float scale, float factor) {
  const float next = scale * factor;
  return is_finite(next) && next >= 1.17549435e-38f ? next : scale;
}

// Runs in one block. `scaler` may be null.
__global__ void __launch_bounds__(kFinishThreads)
    grad_norm_finish_kernel(const double* partials, const StepInputs* inputs, StepResults* results, LossScaler* scaler,
                            long long blocks, Scaling scaling) {
  double sum = 0;
  for (long long i = threadIdx.x; i < blocks; i += kFinishThreads) sum += partials[i];
  sum = block_sum<kFinishThreads>(sum);
  if (threadIdx.x != 0) return;
  const bool finite = is_finite(sum);
  const double scale = scaler ? static_cast<double>(scaler->scale) : 1.0;
  const double norm = sqrt(sum) / scale, max_norm = inputs->max_norm;
  const double clip = max_norm / (norm + 1e-6);
  results->grad_norm = norm;
  results->clip = static_cast<float>((finite && max_norm > 0 && clip < 1 ? clip : 1.0) / scale);
  results->skip = !finite && (scaler || inputs->skip_nonfinite != 0);
  results->skipped_steps += results->skip;
  if (!scaler) {
    if (!finite) results->grad_nonfinite = 1;
    return;
  }
  const unsigned good = finite ? scaler->good_steps + 1 : 0;
  scaler->last_scale = scaler->scale;
  if (!finite)
    scaler->scale = adapted(scaler->scale, scaling.backoff);
  else if (good == scaling.interval)
    scaler->scale = adapted(scaler->scale, scaling.growth);
  scaler->good_steps = good == scaling.interval ? 0 : good;
}

class OptimizerOp final : public CudaOp {
 public:
  explicit OptimizerOp(const OptimizerUpdate& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<OptimizerUpdate>(pointers);
    if (desc_.count == 0) return;
    void* const copy = desc_.copy ? args.copy : nullptr;
    const bool packs = take_packs(args.weights, args.gradients, args.state, copy) &&
                       (desc_.kind.slot_count() < 2 || desc_.stride % 4 == 0);
    in_type(desc_.copy.value_or(DType::f32), [&]<typename Copy>() {
      with_update(desc_.kind, [&]<typename Own, unsigned kSlots>() {
        launch(over_elements(name_of(desc_.kind), desc_.count, packs, stream),
               packs ? update_kernel<4, Own, kSlots, Copy> : update_kernel<1, Own, kSlots, Copy>, args.weights,
               args.gradients, args.state, desc_.stride, args.groups, args.inputs, args.results, copy, desc_.count);
      });
    });
  }

 private:
  OptimizerUpdate desc_;
};

class UpdateDirectionOp final : public CudaOp {
 public:
  explicit UpdateDirectionOp(const UpdateDirection& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<UpdateDirection>(pointers);
    if (desc_.count == 0) return;
    const Launch where{"update_direction", dim3(blocks_for(desc_.count, 1)), dim3(kElementThreads), stream};
    with_tensor_work(desc_.kind, [&]<typename Own>() {
      launch(where, direction_kernel<Own>, args.weights, args.gradients, args.state, desc_.stride, args.groups,
             args.inputs, args.results, args.segments, args.direction, args.partials);
    });
  }

 private:
  UpdateDirection desc_;
};

class TrustRatiosOp final : public CudaOp {
 public:
  explicit TrustRatiosOp(const TrustRatios& desc) : tensors_(desc.tensors) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<TrustRatios>(pointers);
    if (tensors_ == 0) return;
    launch({"trust_ratios", dim3(blocks_for(tensors_, 1)), dim3(kElementThreads), stream}, trust_ratios_kernel,
           args.partials, args.first, args.ratios);
  }

 private:
  long long tensors_;
};

class ApplyDirectionOp final : public CudaOp {
 public:
  explicit ApplyDirectionOp(const ApplyDirection& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<ApplyDirection>(pointers);
    if (desc_.count == 0) return;
    const Launch where{"apply_direction", dim3(blocks_for(desc_.count, 1)), dim3(kElementThreads), stream};
    in_type(desc_.copy.value_or(DType::f32), [&]<typename Copy>() {
      with_tensor_work(desc_.kind, [&]<typename Own>() {
        launch(where, apply_direction_kernel<Own, Copy>, args.weights, args.direction, args.groups, args.inputs,
               args.results, args.segments, args.ratios, args.copy);
      });
    });
  }

 private:
  ApplyDirection desc_;
};

class MovingAverageOp final : public CudaOp {
 public:
  explicit MovingAverageOp(const MovingAverage& desc) : count_(desc.count) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<MovingAverage>(pointers);
    const bool packs = take_packs(args.x, args.average);
    if (count_ > 0)
      launch(over_elements("moving_average", count_, packs, stream),
             packs ? moving_average_kernel<4> : moving_average_kernel<1>, args.x, args.average, args.inputs, count_);
  }

 private:
  long long count_;
};

class GradNormPartialsOp final : public CudaOp {
 public:
  explicit GradNormPartialsOp(const GradNormPartials& desc) : count_(desc.count) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormPartials>(pointers);
    if (count_ == 0) return;
    const Launch where{"grad_norm_partials", dim3(blocks_for(count_, kNormBlock)), dim3(kElementThreads), stream};
    launch(where, take_packs(args.x) ? grad_norm_partials_kernel<4> : grad_norm_partials_kernel<1>, args.x,
           args.partials, count_);
  }

 private:
  long long count_;
};

class GradNormFinishOp final : public CudaOp {
 public:
  explicit GradNormFinishOp(const GradNormFinish& desc) : desc_(desc) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormFinish>(pointers);
    const LossScaling scaling = desc_.scaling.value_or(LossScaling{});
    launch({"grad_norm_finish", dim3(1), dim3(kFinishThreads), stream}, grad_norm_finish_kernel, args.partials,
           args.inputs, args.results, desc_.scaling ? args.scaler : nullptr, desc_.blocks,
           Scaling{scaling.growth, scaling.backoff, scaling.interval});
  }

 private:
  GradNormFinish desc_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const OptimizerUpdate& desc, const CudaOpOptions&) {
  return std::make_unique<OptimizerOp>(desc);
}
std::unique_ptr<CudaOp> make(const UpdateDirection& desc, const CudaOpOptions&) {
  return std::make_unique<UpdateDirectionOp>(desc);
}
std::unique_ptr<CudaOp> make(const TrustRatios& desc, const CudaOpOptions&) {
  return std::make_unique<TrustRatiosOp>(desc);
}
std::unique_ptr<CudaOp> make(const ApplyDirection& desc, const CudaOpOptions&) {
  return std::make_unique<ApplyDirectionOp>(desc);
}
std::unique_ptr<CudaOp> make(const MovingAverage& desc, const CudaOpOptions&) {
  return std::make_unique<MovingAverageOp>(desc);
}
std::unique_ptr<CudaOp> make(const GradNormPartials& desc, const CudaOpOptions&) {
  return std::make_unique<GradNormPartialsOp>(desc);
}
std::unique_ptr<CudaOp> make(const GradNormFinish& desc, const CudaOpOptions&) {
  return std::make_unique<GradNormFinishOp>(desc);
}

}  // namespace dp::kernels::cuda
