#include "engine/step/tensor_update.h"

#include <algorithm>
#include <ranges>

#include "kernels/op_args.h"

namespace dp::engine {

using namespace kernels;

namespace {

// Rows and columns for Orthogonalize; 0 if the parameter is not a matrix.
TensorOfElement matrix_of(const ParameterEntry& entry) {
  const std::int64_t rows = entry.shape.rank() < 2 ? 0 : entry.shape[0];
  const std::int64_t columns = rows == 0 ? 0 : entry.shape.numel() / rows;
  if (columns < 2) return {};
  return {static_cast<std::int32_t>(rows), static_cast<std::int32_t>(columns)};
}

bool overlap(const ParameterEntry& entry, Range range) {
  return entry.offset < range.end && range.begin < entry.offset + entry.count;
}

}  // namespace

TensorUpdate::TensorUpdate(Context& context, const ParameterTable& table, const std::vector<Bucket>& buckets,
                           const std::vector<Range>& parts, const ParameterGroups& groups, const UpdateKind& kind)
    : kind_(kind), element_bytes_(size_of(table.type())), parts_(parts) {
  std::vector<const ParameterEntry*> entries;
  for (const ParameterEntry& entry : table.entries()) entries.push_back(&entry);
  std::ranges::sort(entries, {}, &ParameterEntry::offset);
  for (const ParameterEntry* entry : entries) {
    add_segments(*entry, buckets);
    const bool frozen = !groups.frozen_in({entry->offset, entry->offset + 1}).empty();
    if (work() == TensorWork::orthogonal && matrix_of(*entry).rows != 0 && !frozen &&
        std::ranges::any_of(parts, [&](Range part) { return overlap(*entry, part); }))
      add_matrix(context, *entry, table.type());
  }
  first_.push_back(static_cast<std::int64_t>(segments_.size()));
  for (const Range& part : parts) {
    own_.emplace_back(segment_at(part.begin), segment_at(part.end));
    if (part.size() == 0) own_.back().second = own_.back().first;
  }
  if (buckets.empty()) return;
  std::size_t rows = 0, workspace = 0;
  for (const Matrix& matrix : matrices_) {
    rows = std::max(rows, matrix.to_rows->tensors()[1].layout.bytes);
    for (const auto* op : {&matrix.to_rows, &matrix.orthogonalize, &matrix.from_rows})
      workspace = std::max(workspace, (*op)->workspace_bytes());
  }
  bytes_ = aligned(table.bytes());
  const auto reserve = [&](std::size_t& offset, std::size_t bytes) { offset = bytes_, bytes_ += aligned(bytes); };
  reserve(segments_at_, segments_.size() * sizeof(TensorSegment));
  if (work() == TensorWork::trust_ratio) {
    trust_ratios_ = context.make_op(TrustRatios{static_cast<std::int64_t>(first_.size()) - 1});
    reserve(first_at_, first_.size() * sizeof(std::int64_t));
    reserve(partials_at_, 2 * segments_.size() * sizeof(double));
    reserve(ratios_at_, first_.size() * sizeof(double));
  }
  reserve(rows_at_, rows);
  reserve(workspace_at_, workspace);
}

// The blocks of the buckets, cut at the ends of the tensor.
void TensorUpdate::add_segments(const ParameterEntry& entry, const std::vector<Bucket>& buckets) {
  const auto tensor = static_cast<std::int32_t>(first_.size());
  first_.push_back(static_cast<std::int64_t>(segments_.size()));
  const TensorOfElement shape = work() == TensorWork::orthogonal ? matrix_of(entry) : TensorOfElement{};
  for (const Bucket& bucket : std::views::reverse(buckets)) {
    const std::int64_t begin = bucket.range.begin, end = std::min(entry.offset + entry.count, bucket.range.end);
    for (std::int64_t at = std::max(entry.offset, begin); at < end;) {
      const std::int64_t next = std::min(end, begin + ((at - begin) / kNormBlock + 1) * kNormBlock);
      segments_.push_back({at, static_cast<std::int32_t>(next - at), tensor, shape});
      at = next;
    }
  }
}

void TensorUpdate::add_matrix(Context& context, const ParameterEntry& entry, DType type) {
  const TensorOfElement shape = matrix_of(entry);
  const TensorDesc stored{entry.stored, type, entry.layout},
      rows{entry.stored, type, context.plain_layout(entry.stored, type)};
  matrices_.push_back({entry.offset, context.make_op(Reorder{stored, rows}),
                       context.make_op(Orthogonalize{shape.rows, shape.columns}),
                       context.make_op(Reorder{rows, stored})});
}

std::int64_t TensorUpdate::segment_at(std::int64_t element) const {
  return std::ranges::lower_bound(segments_, element, {}, &TensorSegment::begin) - segments_.begin();
}

void TensorUpdate::allocate(OpenDevice& device) {
  if (bytes_ == 0) return;
  memory_ = device.allocate(bytes_, &MemoryUse::optimizer);
  std::vector<TensorSegment> in_parts = segments_;
  for (std::size_t part = 0; part < parts_.size(); ++part)
    for (std::int64_t i = own_[part].first; i < own_[part].second; ++i)
      in_parts[static_cast<std::size_t>(i)].begin -= parts_[part].begin;
  device.compute().copy(at(segments_at_), in_parts.data(), in_parts.size() * sizeof(TensorSegment));
  if (trust_ratios_) device.compute().copy(at(first_at_), first_.data(), first_.size() * sizeof(std::int64_t));
  device.compute().synchronize();
}

std::byte* TensorUpdate::segments(std::size_t part) const {
  return at(segments_at_ + static_cast<std::size_t>(own_[part].first) * sizeof(TensorSegment));
}

double* TensorUpdate::partials(std::int64_t element) const {
  return reinterpret_cast<double*>(at(partials_at_)) + partials_before(element);
}

void TensorUpdate::finish(Stream& stream) {
  if (trust_ratios_)
    run_op<TrustRatios>(*trust_ratios_, stream,
                        {.partials = at(partials_at_), .first = at(first_at_), .ratios = at(ratios_at_)});
  for (const Matrix& matrix : matrices_) {
    run_op<Reorder>(*matrix.to_rows, stream, {.src = direction(matrix.begin), .dst = at(rows_at_)}, at(workspace_at_));
    run_op<Orthogonalize>(*matrix.orthogonalize, stream, {.x = at(rows_at_)}, at(workspace_at_));
    run_op<Reorder>(*matrix.from_rows, stream, {.src = at(rows_at_), .dst = direction(matrix.begin)},
                    at(workspace_at_));
  }
}

}  // namespace dp::engine
