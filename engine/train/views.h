// Test-time augmentation: evaluates several views of each image and averages their outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "dp/data_parallel.h"
#include "dp/process_group.h"
#include "dp/trainer.h"

namespace dp {

// An image that is moved by `shift` pixels to the upper left, or the lower right if negative, and then mirrored. Pixels
// from outside are those on the other side of the border, without the border itself ("reflect").
struct View {
  std::int64_t shift = 0;
  bool mirrored = false;
  double weight = 1;  // of its outputs
};
std::vector<View> views_of(TestAugmentation augmentation);
// `images`: (B,C,H,W) float32; `out` has the same shape.
void copy_view(const View& view, const Tensor& images, Tensor& out);

class ViewEvaluation {
 public:
  // `net` must outlive this object; from now on it stores the outputs of one batch of up to `rows` samples. `keeps`:
  // for take_outputs(). Error(device) if a device lacks the memory.
  ViewEvaluation(DataParallel& net, TestAugmentation augmentation, std::int64_t rows, bool keeps);

  // Of a batch with images. The statistics of `net` then have those of each view.
  void evaluate(const Batch& batch);
  // Replaces the loss and the accuracies of all views together by those of the averaged outputs, over all ranks. Every
  // rank calls this.
  void set_totals(Stats& stats, ProcessGroup* group) const;
  // The averaged outputs of all batches of this process; empty unless `keeps`.
  EvaluatedLogits take_outputs();

 private:
  void add_outputs(const Batch& batch, double weight);
  void keep(const Batch& batch, const Tensor& averaged);

  DataParallel& net_;
  std::vector<View> views_;
  bool keeps_;
  Tensor view_;                // of the images of a batch
  std::vector<double> means_;  // of the outputs of a batch, in its order
  DType logits_type_ = DType::f32;
  Stats stats_;
  std::vector<std::int64_t> samples_;
  std::vector<std::int32_t> labels_;
  std::vector<Tensor> logits_, targets_;  // of each batch
};

}  // namespace dp
