#include "engine/parameters.h"

namespace dp::engine {

ParameterTable::ParameterTable(const Model& model, const std::vector<kernels::Layout>& layouts, DType type)
    : type_(type) {
  constexpr std::int64_t kAlign = 16;
  for (std::size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    const auto count = static_cast<std::int64_t>(layouts[i].bytes / size_of(type));
    entries_.push_back({spec.name, spec.shape, layouts[i], size_, count});
    size_ += (count + kAlign - 1) / kAlign * kAlign;
  }
}

std::vector<Bucket> ParameterTable::buckets(std::size_t bucket_bytes) const {
  std::vector<Bucket> buckets;
  std::int64_t end = size_;
  for (int i = static_cast<int>(entries_.size()) - 1; i >= 0; --i) {
    const std::int64_t begin = entry(i).offset;
    const bool full = static_cast<std::size_t>(end - begin) * size_of(type_) >= bucket_bytes;
    if (full || i == 0) {
      buckets.push_back({{begin, end}, i});
      end = begin;
    }
  }
  return buckets;
}

std::size_t default_bucket_bytes(const ParameterTable& table) {
  constexpr std::size_t kSmallModel = std::size_t{6} << 20, kBucket = std::size_t{4} << 20;
  return table.bytes() <= kSmallModel ? kSmallModel : kBucket;
}

}  // namespace dp::engine
