// Gradient reduction in bfloat16, checked against the gradients of each replica alone, for every kind of device.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/comm/communicator.h"
#include "kernels/low_float.h"
#include "support/catch.h"
#include "support/training.h"

namespace dp::test {

inline float rounded(float value) { return kernels::to_float(kernels::from_float<kernels::BFloat16>(value)); }

inline Tensor rows_of(const Tensor& whole, std::int64_t begin, std::int64_t count) {
  const std::int64_t row = whole.numel() / whole.shape()[0];
  Tensor part(whole.shape().with_dim(0, count));
  std::copy_n(whole.data<float>() + begin * row, count * row, part.data<float>());
  return part;
}

// An arbitrary gradient of the logits. It depends on the number of rows only.
inline Tensor any_logits_grad(const Model& model, std::int64_t rows) {
  Tensor grad(model.output().prepended(rows));
  Random random(7, RandomUse::synthetic);
  for (float& x : grad.span<float>()) x = random.uniform(-1, 1);
  return grad;
}

inline DataParallelOptions without_dropout(DataParallelOptions options) {
  options.dropout = false;
  return options;
}

// The gradients of each replica's shard, computed by a single replica.
inline std::vector<std::vector<NamedTensor>> gradients_alone(const Model& model, const DataParallelOptions& options,
                                                             const Batch& batch) {
  DataParallelOptions one = without_dropout(options);
  one.devices.resize(1);
  one.comm = Comm::automatic;
  one.reduce = Reduce::automatic;
  one.reduce_dtype = DType::f32;
  DataParallel net(model, one);
  const Tensor grad = any_logits_grad(model, batch.size());
  std::vector<std::vector<NamedTensor>> all;
  std::int64_t begin = 0;
  for (const std::int64_t rows : split_batch(batch.size(), static_cast<int>(options.devices.size()), options.split)) {
    net.forward(rows_of(batch.images, begin, rows));
    net.backward(rows_of(grad, begin, rows));
    all.push_back(net.gradients());
    begin += rows;
  }
  return all;
}

inline float sum_rounded(const std::vector<std::vector<NamedTensor>>& all, std::size_t tensor, std::int64_t at,
                         int begin, int end) {
  if (end - begin == 1) return rounded(all[static_cast<std::size_t>(begin)][tensor].second.data<float>()[at]);
  const int middle = kernels::tree_split(begin, end);
  return sum_rounded(all, tensor, at, begin, middle) + sum_rounded(all, tensor, at, middle, end);
}

// Rounds each gradient, adds in float32 over the fixed tree, then rounds once.
inline std::vector<NamedTensor> rounded_sum(const std::vector<std::vector<NamedTensor>>& all) {
  std::vector<NamedTensor> sums;
  for (std::size_t t = 0; t < all.front().size(); ++t) {
    Tensor sum(all.front()[t].second.shape());
    for (std::int64_t at = 0; at < sum.numel(); ++at)
      sum.data<float>()[at] = rounded(sum_rounded(all, t, at, 0, static_cast<int>(all.size())));
    sums.emplace_back(all.front()[t].first, std::move(sum));
  }
  return sums;
}

// The result must be bit-equal in every reduction mode and with every bucket size.
inline void check_rounded_sums(const Model& model, DataParallelOptions options, std::int64_t rows) {
  options = without_dropout(options);
  options.reduce_dtype = DType::bf16;
  const Batch batch = random_batch(model, rows);
  const auto alone = gradients_alone(model, options, batch);
  const auto expected = rounded_sum(alone);
  for (const Reduce reduce : {Reduce::master, Reduce::all_reduce, Reduce::sharded})
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{3000}}) {
      options.reduce = reduce;
      options.bucket_bytes = bucket_bytes;
      const auto sum_as = [&](DType type) {
        DataParallelOptions own = options;
        own.reduce_dtype = type;
        DataParallel net(model, own);
        net.forward(batch.images);
        net.backward(any_logits_grad(model, rows));
        return net.gradients();
      };
      const auto got = sum_as(DType::bf16), exact = sum_as(DType::f32);
      INFO(options.devices.size() << " replicas, reduce " << static_cast<int>(reduce) << ", bucket " << bucket_bytes);
      CHECK(bit_equal(got, expected));
      CHECK_FALSE(bit_equal(got, exact));
      CHECK(worst_error(got, exact).error < 0.02);
    }
}

// The record of a short training run.
struct RoundedCourse {
  std::vector<double> losses, norms;
  std::vector<NamedTensor> weights, state;
};
inline RoundedCourse rounded_course(const Model& model, DataParallelOptions options, DType type, std::int64_t rows) {
  options.reduce_dtype = type;
  DataParallel net(model, options);
  CHECK(net.options().reduce_dtype == type);
  RoundedCourse course;
  for (std::uint64_t i = 0; i < 5; ++i) {
    net.train_step(random_batch(model, rows, i), Sgd{.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f});
    const Stats stats = net.take_stats();
    course.losses.push_back(stats.loss());
    course.norms.push_back(stats.grad_norm);
  }
  CHECK(net.replicas_identical());
  course.weights = net.weights();
  course.state = net.optimizer_state().tensors;
  return course;
}

// Fraction of non-zero float32 values that bfloat16 cannot represent.
inline double finer_than_bfloat16(const std::vector<NamedTensor>& tensors) {
  double finer = 0, all = 0;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.second.dtype() != DType::f32) continue;
    for (std::int64_t at = 0; at < tensor.second.numel(); ++at) {
      const float value = tensor.second.data<float>()[at];
      finer += value != rounded(value), all += value != 0;
    }
  }
  return finer / all;
}

// Losses, norms and weights stay within rounding of a float32 reduction. Weights and optimizer state stay float32.
inline void check_rounded_training(const Model& model, DataParallelOptions options, std::int64_t rows) {
  const auto origin = DataParallel(model, options).weights();
  const RoundedCourse exact = rounded_course(model, options, DType::f32, rows),
                      got = rounded_course(model, options, DType::bf16, rows);
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    CHECK(got.losses[i] == Approx(exact.losses[i]).epsilon(0.01));
    CHECK(got.norms[i] == Approx(exact.norms[i]).epsilon(0.02));
  }
  CHECK(got.losses.front() == exact.losses.front());
  CHECK_FALSE(bit_equal(got.weights, exact.weights));
  CHECK(worst_error(got.weights, exact.weights, &origin).error < 0.1);
  CHECK(finer_than_bfloat16(got.weights) > 0.9);
  CHECK(finer_than_bfloat16(got.state) > 0.9);
}

}  // namespace dp::test
