// DropoutApply. One draw gives the random words of four elements in C,H,W order. Row-major, a thread takes these four.
// Channels last, they are far apart in memory: a thread takes neighbours in memory and makes one draw per element.
#include "kernels/cuda/cuda_op.h"
#include "kernels/cuda/ops/orders.h"
#include "kernels/cuda/ops/pack.h"
#include "kernels/cuda/ops/philox.h"
#include "kernels/op_args.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// `per_sample`: elements of a sample. `quads`: draws per sample.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_plain_kernel(const T* x, T* y, const std::int64_t* samples, const StepInputs* inputs, unsigned batch,
                         unsigned per_sample, unsigned quads, Dropping dropping) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= batch * quads) return;
  const unsigned sample = index / quads, quad = index % quads;
  const uint4 words = dropout_words_of(*inputs, dropping.layer, samples[sample], quad);
  const long long at = static_cast<long long>(sample) * per_sample + 4ll * quad;
  const auto apply = [&](float value, unsigned k) {
    return word_of(words, k) >= dropping.threshold ? value * dropping.scale : 0.f;
  };
  if constexpr (kWidth == 4) {
    Pack<4> values = load_pack<4>(x + at);
    for (unsigned k = 0; k < 4; ++k) values.v[k] = apply(values.v[k], k);
    store_pack(y + at, values);
  } else {
    for (unsigned k = 0; k < 4; ++k)
      if (4 * quad + k < per_sample) y[at + k] = from_float<T>(apply(to_float(x[at + k]), k));
  }
}

template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads)
    dropout_channels_last_kernel(const T* x, T* y, const std::int64_t* samples, const StepInputs* inputs,
                                 unsigned packs, unsigned channels, unsigned pixels, Dropping dropping) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= packs) return;
  const unsigned channel = index % (channels / kWidth) * kWidth, row = index / (channels / kWidth);
  const std::int64_t sample = samples[row / pixels];
  const long long at = static_cast<long long>(index) * kWidth;
  Pack<kWidth> values = load_pack<kWidth>(x + at);
  for (int k = 0; k < kWidth; ++k) {
    const bool kept = dropout_keeps(*inputs, dropping, sample, (channel + k) * pixels + row % pixels);
    values.v[k] = kept ? values.v[k] * dropping.scale : 0.f;
  }
  store_pack(y + at, values);
}

class DropoutOp final : public CudaOp {
 public:
  explicit DropoutOp(const DropoutApply& desc) : dropping_(dropping(desc.dropout)) {
    tensors_ = {resolved_channels_last(desc.x)};
    order_ = order_of(tensors_[0]);
    count_ = index_count(tensors_[0]);
  }
  std::string implementation() const override { return "own:philox"; }

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> pointers, void*) override {
    const auto args = args_of<DropoutApply>(pointers);
    if (count_ == 0) return;
    const bool aligned = take_packs(args.x, args.y);
    in_type(tensors_[0].type, [&]<typename T>() {
      if (order_.channels_last)
        channels_last<T>(stream, args, aligned);
      else
        plain<T>(stream, args, aligned);
    });
  }

 private:
  template <typename T>
  void channels_last(cudaStream_t stream, const Pointers<DropoutApply>& args, bool aligned) const {
    const bool packs = aligned && order_.channels % 4 == 0;
    const unsigned count = packs ? count_ / 4 : count_;
    launch({"dropout", dim3(blocks_for(count, kThreads)), dim3(kThreads), stream},
           packs ? dropout_channels_last_kernel<4, T> : dropout_channels_last_kernel<1, T>, args.x, args.y,
           args.samples, args.inputs, count, order_.channels, order_.pixels, dropping_);
  }
  template <typename T>
  void plain(cudaStream_t stream, const Pointers<DropoutApply>& args, bool aligned) const {
    const auto batch = static_cast<unsigned>(tensors_[0].shape[0]);
    const unsigned per_sample = count_ / batch, quads = blocks_for(per_sample, 4);
    const bool packs = aligned && per_sample % 4 == 0;
    launch({"dropout", dim3(blocks_for(batch * quads, kThreads)), dim3(kThreads), stream},
           packs ? dropout_plain_kernel<4, T> : dropout_plain_kernel<1, T>, args.x, args.y, args.samples, args.inputs,
           batch, per_sample, quads, dropping_);
  }

  Dropping dropping_;
  Order order_;
  unsigned count_;
};

}  // namespace

std::unique_ptr<CudaOp> make(const DropoutApply& desc, const CudaOpOptions&) {
  return std::make_unique<DropoutOp>(desc);
}

}  // namespace dp::kernels::cuda
