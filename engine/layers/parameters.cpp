#include "engine/layers/parameters.h"

#include <algorithm>

namespace dp::engine {

namespace {

constexpr std::int64_t kAlign = 16;

std::int64_t round_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Weights of convolutions may have fewer than four dimensions in PyTorch (ModelBuilder::pointwise_linear, scale).
Shape stored_shape(const Model& model, const ParameterSpec& spec) {
  const Layer& layer = model.layers()[static_cast<std::size_t>(spec.layer)];
  const bool flat = spec.shape.rank() == 2 || spec.shape.rank() == 3;
  if (!flat || !std::holds_alternative<Conv2d>(layer.kind)) return spec.shape;
  return Shape{spec.shape[0], spec.shape.numel() / spec.shape[0], 1, 1};
}

}  // namespace

ParameterTable::ParameterTable(const Model& model, const std::vector<kernels::Layout>& layouts, DType type,
                               std::int64_t granularity, bool vectors_first)
    : type_(type), granularity_(granularity) {
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    const auto count = static_cast<std::int64_t>(layouts[i].bytes / size_of(type));
    entries_.push_back({spec.name, spec.shape, stored_shape(model, spec), layouts[i], 0, count});
  }
  const auto place = [&](const auto& chosen) {
    for (ParameterEntry& entry : entries_) {
      if (!chosen(entry)) continue;
      entry.offset = size_;
      size_ += round_up(entry.count, kAlign);
    }
    size_ = round_up(size_, granularity_);
  };
  const auto is_vector = [](const ParameterEntry& entry) { return entry.shape.rank() == 1; };
  if (vectors_first) {
    place(is_vector);
    vectors_ = size_;
  }
  place([&](const ParameterEntry& entry) { return !vectors_first || !is_vector(entry); });
}

std::int64_t ParameterTable::begin_of(int index) const { return round_up(entry(index).offset, granularity_); }

std::int64_t ParameterTable::last_end(std::size_t last_bytes) const {
  std::int64_t end = 0;
  for (int i = 0; i < static_cast<int>(entries_.size()); ++i) {
    if (entry(i).offset <= vectors_) continue;  // the vectors, and the first entry after them
    const std::int64_t begin = begin_of(i);
    if (end == 0 || static_cast<std::size_t>(begin - vectors_) * size_of(type_) <= last_bytes) end = begin;
  }
  return end;
}

std::vector<Bucket> ParameterTable::buckets(std::size_t bucket_bytes, std::size_t last_bytes,
                                            const std::vector<int>& ends) const {
  std::vector<Bucket> buckets;
  const std::int64_t cut = last_bytes == 0 ? 0 : last_end(last_bytes);
  std::int64_t end = size_;
  for (int i = static_cast<int>(entries_.size()) - 1; i >= 0; --i) {
    const std::int64_t begin = begin_of(i);
    if (begin >= end || entry(i).offset < vectors_) continue;  // entries smaller than the granularity, and vectors
    const bool full = static_cast<std::size_t>(end - begin) * size_of(type_) >= bucket_bytes;
    if (full || begin == cut || begin == vectors_ || std::ranges::find(ends, i) != ends.end()) {
      buckets.push_back({{begin, end}, i});
      end = begin;
    }
  }
  if (vectors_ != 0) buckets.push_back({{0, vectors_}, 0});
  return buckets;
}

void ParameterTable::trim(std::vector<Bucket>& buckets, const std::vector<bool>& frozen) const {
  for (Bucket& bucket : buckets) {
    kernels::Range trained{bucket.range.end, bucket.range.begin};
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const ParameterEntry& e = entries_[i];
      if (frozen[i] || e.offset >= bucket.range.end || e.offset + e.count <= bucket.range.begin) continue;
      trained.begin = std::min(trained.begin, e.offset / granularity_ * granularity_);
      trained.end = std::max(trained.end, round_up(e.offset + round_up(e.count, kAlign), granularity_));
    }
    bucket.range = {std::max(bucket.range.begin, trained.begin), std::min(bucket.range.end, trained.end)};
  }
  std::erase_if(buckets, [](const Bucket& bucket) { return bucket.range.end <= bucket.range.begin; });
}

std::size_t default_bucket_bytes(std::size_t parameter_bytes) {
  constexpr std::size_t kSmallModel = std::size_t{6} << 20, kBucket = std::size_t{4} << 20;
  return parameter_bytes <= kSmallModel ? kSmallModel : kBucket;
}

}  // namespace dp::engine
