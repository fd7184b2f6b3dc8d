#include "engine/train/views.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "dp/error.h"
#include "engine/parallel/host_stats.h"

namespace dp {

std::vector<View> views_of(TestAugmentation augmentation) {
  switch (augmentation) {
    case TestAugmentation::none: break;
    case TestAugmentation::flip: return {{0, false, 0.5}, {0, true, 0.5}};
    case TestAugmentation::flip_translate:
      return {{0, false, 0.25},  {0, true, 0.25},   {-1, false, 0.125},
              {-1, true, 0.125}, {1, false, 0.125}, {1, true, 0.125}};
  }
  return {{}};
}

void copy_view(const View& view, const Tensor& images, Tensor& out) {
  const std::int64_t rows = images.shape()[2], columns = images.shape()[3];
  const auto reflected = [](std::int64_t at, std::int64_t size) {
    const std::int64_t inside = at < 0 ? -at : at >= size ? 2 * (size - 1) - at : at;
    return std::clamp<std::int64_t>(inside, 0, size - 1);
  };
  std::vector<std::int64_t> from(static_cast<std::size_t>(columns));  // of each column
  for (std::int64_t x = 0; x < columns; ++x)
    from[static_cast<std::size_t>(x)] = reflected((view.mirrored ? columns - 1 - x : x) + view.shift, columns);
  const float* plane = images.data<float>();
  float* to = out.data<float>();
  for (std::int64_t left = images.shape()[0] * images.shape()[1]; left > 0; --left, plane += rows * columns)
    for (std::int64_t y = 0; y < rows; ++y) {
      const float* const row = plane + reflected(y + view.shift, rows) * columns;
      for (const std::int64_t x : from) *to++ = row[x];
    }
}

ViewEvaluation::ViewEvaluation(DataParallel& net, TestAugmentation augmentation, std::int64_t rows, bool keeps)
    : net_(net), views_(views_of(augmentation)), keeps_(keeps), view_(net.model().input().prepended(rows)) {
  if (!net.store_logits(1, rows))
    throw Error(ErrorCode::device, "a device lacks memory for the outputs of " + std::to_string(rows) +
                                       " images, which --tta averages; use a smaller batch, or leave it out");
}

void ViewEvaluation::evaluate(const Batch& batch) {
  const std::int64_t rows = batch.size(), outputs = net_.model().output().numel();
  means_.assign(static_cast<std::size_t>(rows * outputs), 0);
  for (const View& view : views_) {
    Batch shown = batch;
    if (rows > 0 && (view.mirrored || view.shift != 0)) {
      shown.images = view_.rows(0, rows);
      copy_view(view, batch.images, shown.images);
    }
    net_.evaluate(shown);
    add_outputs(batch, view.weight);
  }
  if (rows == 0) return;
  Tensor averaged(Shape{rows, outputs}, logits_type_);
  if (logits_type_ == DType::f64)
    std::ranges::copy(means_, averaged.data<double>());
  else
    std::ranges::transform(means_, averaged.data<float>(), [](double mean) { return static_cast<float>(mean); });
  const Stats stats = engine::stats_of(averaged, batch, net_.options());
  stats_.loss_sum += stats.loss_sum, stats_.samples += stats.samples;
  stats_.top1 += stats.top1, stats_.top5 += stats.top5;
  if (keeps_) keep(batch, averaged);
}

// The replicas' outputs are in no particular order.
void ViewEvaluation::add_outputs(const Batch& batch, double weight) {
  const EvaluatedLogits taken = net_.take_logits();
  std::map<std::int64_t, std::size_t> rows;
  for (const std::int64_t sample : batch.samples.span<std::int64_t>()) rows.emplace(sample, rows.size());
  logits_type_ = taken.logits.dtype();
  const std::size_t outputs = means_.size() / std::max<std::size_t>(rows.size(), 1);
  for (std::size_t row = 0; row < taken.samples.size(); ++row) {
    double* const mean = &means_[rows.at(taken.samples[row]) * outputs];
    for (std::size_t k = 0; k < outputs; ++k)
      mean[k] +=
          weight * (logits_type_ == DType::f64 ? taken.logits.data<double>()[row * outputs + k]
                                               : static_cast<double>(taken.logits.data<float>()[row * outputs + k]));
  }
}

void ViewEvaluation::keep(const Batch& batch, const Tensor& averaged) {
  const auto samples = batch.samples.span<std::int64_t>();
  samples_.insert(samples_.end(), samples.begin(), samples.end());
  logits_.push_back(averaged);
  if (!batch.targets.empty()) return targets_.push_back(batch.targets.clone());
  const auto labels = batch.labels.span<std::int32_t>();
  labels_.insert(labels_.end(), labels.begin(), labels.end());
}

namespace {

// All rows, one tensor after the other.
Tensor joined(const std::vector<Tensor>& parts) {
  if (parts.empty()) return {};
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.shape()[0];
  Tensor all(Shape{rows, parts.front().shape()[1]}, parts.front().dtype());
  auto* to = static_cast<std::byte*>(all.raw());
  for (const Tensor& part : parts) {
    std::memcpy(to, part.raw(), part.bytes());
    to += part.bytes();
  }
  return all;
}

}  // namespace

EvaluatedLogits ViewEvaluation::take_outputs() {
  return {std::move(samples_), std::move(labels_), joined(std::exchange(logits_, {})),
          joined(std::exchange(targets_, {}))};
}

void ViewEvaluation::set_totals(Stats& stats, ProcessGroup* group) const {
  struct Totals {
    double loss_sum;
    std::int64_t samples, top1, top5;
  };
  const Totals own{stats_.loss_sum, stats_.samples, stats_.top1, stats_.top5};
  std::vector<std::string> parts{std::string(reinterpret_cast<const char*>(&own), sizeof own)};
  if (group != nullptr) parts = group->exchange(parts.front());
  stats.loss_sum = 0, stats.samples = stats.top1 = stats.top5 = 0;
  for (const std::string& part : parts) {
    Totals each{};
    std::memcpy(&each, part.data(), std::min(part.size(), sizeof each));
    stats.loss_sum += each.loss_sum, stats.samples += each.samples, stats.top1 += each.top1, stats.top5 += each.top5;
  }
}

}  // namespace dp
