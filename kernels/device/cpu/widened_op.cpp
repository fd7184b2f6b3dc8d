#include "kernels/device/cpu/widened_op.h"

#include <algorithm>
#include <array>

#include "kernels/device/cpu/bfloat16.h"
#include "kernels/device/cpu/convert.h"

namespace dp::kernels {
namespace {

constexpr std::size_t kPartAlignment = 64;

std::int64_t elements(const TensorDesc& tensor) {
  return static_cast<std::int64_t>(tensor.layout.bytes / size_of(tensor.type));
}

}  // namespace

WidenedOp::WidenedOp(std::unique_ptr<HostOp> op, std::vector<Tensor> low, std::vector<TensorDesc> tensors, int threads)
    : op_(std::move(op)), low_(std::move(low)), places_{0}, threads_(threads) {
  tensors_ = std::move(tensors);
  for (const Tensor& tensor : low_) {
    const std::size_t bytes = static_cast<std::size_t>(elements(tensor.desc)) * sizeof(float);
    places_.push_back(places_.back() + (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment);
  }
}

void WidenedOp::execute(std::span<void* const> args, void* workspace) {
  std::array<void*, kMaxOpArgs> wide{};
  std::copy(args.begin(), args.end(), wide.begin());
  const auto place = [&](std::size_t i) { return static_cast<char*>(workspace) + places_[i]; };
  for (std::size_t i = 0; i < low_.size(); ++i) {
    void*& arg = wide[static_cast<std::size_t>(low_[i].arg.index)];
    if (!low_[i].output) convert<BFloat16, float>(threads_, arg, place(i), elements(low_[i].desc));
    arg = place(i);
  }
  op_->execute({wide.data(), args.size()}, place(low_.size()));
  for (std::size_t i = 0; i < low_.size(); ++i)
    if (low_[i].output)
      convert<float, BFloat16>(threads_, place(i), args[static_cast<std::size_t>(low_[i].arg.index)],
                               elements(low_[i].desc));
}

}  // namespace dp::kernels
