#include "engine/step/rounded_gradients.h"

#include <algorithm>

#include "kernels/low_float.h"

namespace dp::engine {

using namespace kernels;

namespace {

constexpr std::int64_t kShardAlign = 32;  // elements; every shard starts at a multiple of 64 bytes

std::int64_t stride_of(const std::vector<Bucket>& buckets) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) largest = std::max(largest, bucket.range.size());
  return (largest + kShardAlign - 1) / kShardAlign * kShardAlign;
}

}  // namespace

std::size_t RoundedGradients::bytes(const std::vector<Bucket>& buckets, std::size_t shards) {
  return static_cast<std::size_t>(stride_of(buckets)) * shards * sizeof(BFloat16);
}

RoundedGradients::RoundedGradients(Replica& replica, const std::vector<Bucket>& buckets)
    : replica_(replica),
      stride_(stride_of(buckets)),
      buffer_(replica.device.allocate(bytes(buckets, static_cast<std::size_t>(replica.local_shards())),
                                      &MemoryUse::gradients)) {}

void RoundedGradients::add_bucket(Range range, Range own) {
  Context& context = replica_.context();
  const auto flat = [&](std::int64_t count, DType type) {
    const Shape shape{count};
    return TensorDesc{shape, type, context.plain_layout(shape, type)};
  };
  const DType wide = replica_.arenas.table().type();
  Ops ops{range, own, context.make_op(Reorder{flat(range.size(), wide), flat(range.size(), DType::bf16)}), nullptr};
  if (own.size() != 0) ops.widen = context.make_op(Reorder{flat(own.size(), DType::bf16), flat(own.size(), wide)});
  buckets_.push_back(std::move(ops));
}

void RoundedGradients::round(std::size_t bucket, Stream& stream) {
  const Ops& ops = buckets_[bucket];
  const std::int64_t arena = replica_.arenas.table().size();
  for (int shard = 0; shard < replica_.local_shards(); ++shard)
    run_op<Reorder>(*ops.round, stream,
                    {.src = reinterpret_cast<float*>(replica_.arenas.gradients()) + shard * arena + ops.range.begin,
                     .dst = static_cast<BFloat16*>(data()) + shard * stride_});
}

void RoundedGradients::widen(std::size_t bucket, Stream& stream) {
  const Ops& ops = buckets_[bucket];
  if (!ops.widen) return;
  run_op<Reorder>(*ops.widen, stream,
                  {.src = static_cast<BFloat16*>(data()) + (ops.own.begin - ops.range.begin),
                   .dst = reinterpret_cast<float*>(replica_.arenas.gradients()) + ops.own.begin});
}

}  // namespace dp::engine
