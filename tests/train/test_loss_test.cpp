// The test loss is plain cross-entropy, as timm computes it, so that it can be compared between runs.
#include "support/catch.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::tiny_options;

TEST_CASE("label smoothing changes the training loss and not the test loss, on every layout") {
  const TrainerOptions plain = tiny_options();
  const auto test_loss = [](const TrainerOptions& options) {
    return Trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options).evaluate().test_loss;
  };
  for (const int layout : {1, 2, 3, 4}) {
    INFO("layout " << layout);
    TrainerOptions options = plain;
    options.parallel.devices = cpus(layout == 1 ? 1 : 2);
    if (layout == 3) options.parallel.loss = LossAt::gathered;
    if (layout == 4) options.parallel.pipeline.stages = 2, options.parallel.pipeline.micro_batches = 2;
    const double without = test_loss(options);
    options.parallel.label_smoothing = 0.2f;
    CHECK(test_loss(options) == without);
  }
  TrainerOptions smoothed = plain;
  smoothed.parallel.label_smoothing = 0.2f;
  smoothed.max_steps = 1, smoothed.optimizer = Sgd{.lr = 0};
  TrainerOptions unsmoothed = smoothed;
  unsmoothed.parallel.label_smoothing = 0;
  const RunSummary a = dp::test::tiny_run(smoothed), b = dp::test::tiny_run(unsmoothed);
  CHECK(a.train_loss != b.train_loss);
  CHECK(a.test_loss == b.test_loss);
}

}  // namespace
