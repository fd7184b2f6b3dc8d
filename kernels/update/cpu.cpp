// OptimizerUpdate, MovingAverage and the gradient norm. Compiled with -ffp-contract=off: an element's new value must
// not depend on whether the vector loop or its remainder computes it, which changes with the split of a range.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>

#include "kernels/device/cpu/cpu_op.h"
#include "kernels/device/cpu/lanes.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/op_args.h"
#include "kernels/step_state.h"

namespace dp::kernels {
namespace {

// Updates [begin, end). Returns 0, or NaN if an updated weight is NaN or infinite. `first` to `third`: the slots.
template <typename Own, unsigned kSlots>
float update_range(float* __restrict weights, const float* __restrict gradients, float* __restrict first,
                   float* __restrict second, float* __restrict third, const Element<Own, float> element,
                   std::int64_t begin, std::int64_t end) {
  float poison = 0;
#pragma omp simd reduction(+ : poison)
  for (std::int64_t i = begin; i < end; ++i) {
    float a = 0, b = 0, c = 0;
    if constexpr (kUses<kSlots, 0>) a = first[i];
    if constexpr (kUses<kSlots, 1>) b = second[i];
    if constexpr (kUses<kSlots, 2>) c = third[i];
    const float updated = element(gradients[i], weights[i], a, b, c);
    if constexpr (kUses<kSlots, 0>) first[i] = a;
    if constexpr (kUses<kSlots, 1>) second[i] = b;
    if constexpr (kUses<kSlots, 2>) third[i] = c;
    weights[i] = updated;
    poison += updated * 0.0f;
  }
  return poison;
}

constexpr std::int64_t kRun = 4096;  // elements whose new values are in the cache when they are rounded

// The copies that layers read, in mixed precision.
void round_range(const float* weights, BFloat16* copy, std::int64_t begin, std::int64_t end) {
  for_lanes_of(begin, end, [=](auto lanes, std::int64_t i) {
    using V = decltype(lanes);
    V::store(copy + i, V::load(weights + i));
  });
}

// The end of the run of elements from `begin` that belong to one group.
std::int64_t end_of_run(const std::uint8_t* groups, std::int64_t begin, std::int64_t end) {
  if (groups == nullptr) return end;
  std::int64_t next = begin / kGroupElements + 1;
  while (next * kGroupElements < end && groups[next] == groups[begin / kGroupElements]) ++next;
  return std::min(end, next * kGroupElements);
}

class OptimizerOp : public HostOp {
 public:
  OptimizerOp(const OptimizerUpdate& d, const CpuOpOptions& options)
      : desc_(d), threads_(threads_for(options.threads, d.count * 12)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<OptimizerUpdate>(pointers);
    float* weights = static_cast<float*>(args.weights);
    const float* gradients = static_cast<const float*>(args.gradients);
    float* state = static_cast<float*>(args.state);
    BFloat16* copy = static_cast<BFloat16*>(args.copy);
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const UpdateInputs& update = static_cast<const StepInputs*>(args.inputs)->update;
    StepResults& results = *static_cast<StepResults*>(args.results);
    if (results.skip != 0) return;
    const float clip = results.clip;
    const std::int64_t number = number_of(update, results);
    with_update(desc_.kind, [&]<typename Own, unsigned kSlots>() {
      float* const first = slot_of<kSlots, 0>(state, desc_.stride);
      float* const second = slot_of<kSlots, 1>(state, desc_.stride);
      float* const third = slot_of<kSlots, 2>(state, desc_.stride);
      parallel_ranges(threads_, desc_.count, kGroupElements, [=, &update, &results](std::int64_t at, std::int64_t end) {
        while (at < end) {
          const std::int64_t limit = copy != nullptr ? std::min(end, at + kRun) : end;
          const std::int64_t next = end_of_run(groups, at, limit);
          const int group = groups != nullptr ? groups[at / kGroupElements] : 0;
          const Element<Own, float> element(update, update.groups[group], clip, number);
          if (update_range<Own, kSlots>(weights, gradients, first, second, third, element, at, next) != 0)
            std::atomic_ref(results.grad_nonfinite).store(1, std::memory_order_relaxed);
          if (copy != nullptr) round_range(weights, copy, at, next);
          at = next;
        }
      });
    });
  }

 private:
  OptimizerUpdate desc_;
  int threads_;
};

// Sixteen running sums, then a fixed tree: the bits do not depend on the vector width.
double sum_of_squares(const float* x, std::int64_t count) {
  constexpr int kSums = 16;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
#pragma omp simd
    for (int s = 0; s < kSums; ++s) sums[s] += static_cast<double>(x[i + s]) * static_cast<double>(x[i + s]);
  for (int s = 0; i < count; ++i, ++s) sums[s] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int width = kSums / 2; width > 0; width /= 2)
    for (int s = 0; s < width; ++s) sums[s] += sums[s + width];
  return sums[0];
}

class UpdateDirectionOp : public HostOp {
 public:
  UpdateDirectionOp(const UpdateDirection& d, const CpuOpOptions& options)
      : desc_(d), threads_(threads_for(options.threads, d.count * kNormBlock * 16)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<UpdateDirection>(pointers);
    const StepResults& results = *static_cast<const StepResults*>(args.results);
    if (results.skip != 0) return;
    with_tensor_work(desc_.kind, [&]<typename Own>() {
      parallel_ranges(threads_, desc_.count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t s = begin; s < end; ++s) direct<Own>(args, s);
      });
    });
  }

 private:
  template <typename Own>
  void direct(const Pointers<UpdateDirection>& args, std::int64_t number) const {
    const TensorSegment segment = static_cast<const TensorSegment*>(args.segments)[number];
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const UpdateInputs& update = static_cast<const StepInputs*>(args.inputs)->update;
    const StepResults& results = *static_cast<const StepResults*>(args.results);
    const float* __restrict weights = static_cast<const float*>(args.weights) + segment.begin;
    const float* __restrict gradients = static_cast<const float*>(args.gradients) + segment.begin;
    float* __restrict first = static_cast<float*>(args.state) + segment.begin;
    float* __restrict second = first + desc_.stride;
    float* __restrict direction = static_cast<float*>(args.direction) + segment.begin;
    const SegmentRule<Own, float> rule(update,
                                       update.groups[groups != nullptr ? groups[segment.begin / kGroupElements] : 0],
                                       segment.shape, 1, results.clip, number_of(update, results));
#pragma omp simd
    for (std::int32_t i = 0; i < segment.count; ++i)
      direction[i] = rule.direction(gradients[i], weights[i], first[i], second[i]);
    if constexpr (kTensorWork<Own> == TensorWork::trust_ratio) {
      double* const sums = static_cast<double*>(args.partials) + 2 * number;
      sums[0] = sum_of_squares(weights, segment.count);
      sums[1] = sum_of_squares(direction, segment.count);
    }
  }

  UpdateDirection desc_;
  int threads_;
};

class TrustRatiosOp : public HostOp {
 public:
  explicit TrustRatiosOp(const TrustRatios& d) : tensors_(d.tensors) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<TrustRatios>(pointers);
    trust_ratios(static_cast<const double*>(args.partials), static_cast<const std::int64_t*>(args.first),
                 static_cast<double*>(args.ratios), tensors_);
  }

 private:
  std::int64_t tensors_;
};

class ApplyDirectionOp : public HostOp {
 public:
  ApplyDirectionOp(const ApplyDirection& d, const CpuOpOptions& options)
      : desc_(d), threads_(threads_for(options.threads, d.count * kNormBlock * 12)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<ApplyDirection>(pointers);
    StepResults& results = *static_cast<StepResults*>(args.results);
    if (results.skip != 0) return;
    with_tensor_work(desc_.kind, [&]<typename Own>() {
      parallel_ranges(threads_, desc_.count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t s = begin; s < end; ++s)
          if (apply<Own>(args, static_cast<const TensorSegment*>(args.segments)[s]) != 0)
            std::atomic_ref(results.grad_nonfinite).store(1, std::memory_order_relaxed);
      });
    });
  }

 private:
  // Returns 0, or NaN if an updated weight is NaN or infinite.
  template <typename Own>
  static float apply(const Pointers<ApplyDirection>& args, const TensorSegment& segment) {
    const auto* groups = static_cast<const std::uint8_t*>(args.groups);
    const UpdateInputs& update = static_cast<const StepInputs*>(args.inputs)->update;
    const StepResults& results = *static_cast<const StepResults*>(args.results);
    float* __restrict weights = static_cast<float*>(args.weights) + segment.begin;
    const float* __restrict direction = static_cast<const float*>(args.direction) + segment.begin;
    const double ratio =
        kTensorWork<Own> == TensorWork::trust_ratio ? static_cast<const double*>(args.ratios)[segment.tensor] : 1;
    const SegmentRule<Own, float> rule(update,
                                       update.groups[groups != nullptr ? groups[segment.begin / kGroupElements] : 0],
                                       segment.shape, ratio, results.clip, number_of(update, results));
    float poison = 0;
#pragma omp simd reduction(+ : poison)
    for (std::int32_t i = 0; i < segment.count; ++i) {
      const float updated = rule.applied(weights[i], direction[i]);
      weights[i] = updated;
      poison += updated * 0.0f;
    }
    if (args.copy != nullptr)
      round_range(static_cast<const float*>(args.weights), static_cast<BFloat16*>(args.copy), segment.begin,
                  segment.begin + segment.count);
    return poison;
  }

  ApplyDirection desc_;
  int threads_;
};

class MovingAverageOp : public HostOp {
 public:
  MovingAverageOp(const MovingAverage& d, const CpuOpOptions& options)
      : count_(d.count), threads_(threads_for(options.threads, d.count * 8)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<MovingAverage>(pointers);
    const float* x = static_cast<const float*>(args.x);
    float* average = static_cast<float*>(args.average);
    const float share = static_cast<float>(static_cast<const StepInputs*>(args.inputs)->average_share);
    parallel_ranges(threads_, count_, 16, [=](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) average[i] += share * (x[i] - average[i]);
    });
  }

 private:
  std::int64_t count_;
  int threads_;
};

class GradNormPartialsOp : public HostOp {
 public:
  GradNormPartialsOp(const GradNormPartials& d, const CpuOpOptions& options)
      : count_(d.count), threads_(threads_for(options.threads, d.count * 4)) {}
  std::string implementation() const override { return "own:simd"; }

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormPartials>(pointers);
    const float* x = static_cast<const float*>(args.x);
    double* partials = static_cast<double*>(args.partials);
    parallel_ranges(threads_, count_, kNormBlock, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; at += kNormBlock)
        partials[at / kNormBlock] = sum_of_squares(x + at, std::min(kNormBlock, end - at));
    });
  }

 private:
  std::int64_t count_;
  int threads_;
};

class GradNormFinishOp : public HostOp {
 public:
  explicit GradNormFinishOp(const GradNormFinish& d) : blocks_(d.blocks) {}

  void execute(std::span<void* const> pointers, void*) override {
    const auto args = args_of<GradNormFinish>(pointers);
    const double* partials = static_cast<const double*>(args.partials);
    const StepInputs& step = *static_cast<const StepInputs*>(args.inputs);
    StepResults& results = *static_cast<StepResults*>(args.results);
    double sum = 0;
    for (std::int64_t i = 0; i < blocks_; ++i) sum += partials[i];
    const bool finite = std::isfinite(sum);
    results.grad_norm = std::sqrt(sum);
    results.clip = 1;
    if (finite && step.max_norm > 0)
      results.clip = static_cast<float>(std::min(1.0, static_cast<double>(step.max_norm) / (results.grad_norm + 1e-6)));
    results.skip = !finite && step.skip_nonfinite != 0;
    results.skipped_steps += results.skip;
    if (!finite) results.grad_nonfinite = 1;
  }

 private:
  std::int64_t blocks_;
};

}  // namespace

std::unique_ptr<HostOp> make(const OptimizerUpdate& d, const CpuOpOptions& options) {
  return std::make_unique<OptimizerOp>(d, options);
}
std::unique_ptr<HostOp> make(const UpdateDirection& d, const CpuOpOptions& options) {
  return std::make_unique<UpdateDirectionOp>(d, options);
}
std::unique_ptr<HostOp> make(const TrustRatios& d, const CpuOpOptions&) { return std::make_unique<TrustRatiosOp>(d); }
std::unique_ptr<HostOp> make(const ApplyDirection& d, const CpuOpOptions& options) {
  return std::make_unique<ApplyDirectionOp>(d, options);
}
std::unique_ptr<HostOp> make(const MovingAverage& d, const CpuOpOptions& options) {
  return std::make_unique<MovingAverageOp>(d, options);
}
std::unique_ptr<HostOp> make(const GradNormPartials& d, const CpuOpOptions& options) {
  return std::make_unique<GradNormPartialsOp>(d, options);
}
std::unique_ptr<HostOp> make(const GradNormFinish& d, const CpuOpOptions&) {
  return std::make_unique<GradNormFinishOp>(d);
}

}  // namespace dp::kernels
