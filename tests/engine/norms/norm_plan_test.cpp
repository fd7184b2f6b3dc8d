// Whole plans of a residual block with batch normalisation on the reference device: every step, its arguments and their
// offsets in memory.
#include "engine/plan/plan_table.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::engine;
using namespace dp::test;
using kernels::NormFusion;

namespace {

// Two layers read the result of bn1. Only conv3 reads that of bn2.
Model block() {
  ModelBuilder m("block", Shape{2, 4, 4});
  const auto conv = [&](const std::string& name, ModelBuilder::Node x) {
    return m.conv2d(name, x, {.out_channels = 3, .kernel = 1, .bias = false});
  };
  auto x = m.relu(m.batch_norm2d("bn1", conv("conv1", m.input())));
  auto y = m.relu(m.batch_norm2d("bn2", conv("conv2", x)));
  y = m.batch_norm2d("bn3", conv("conv3", y));
  x = m.relu(m.add(y, x));
  return m.build(m.linear("fc", m.flatten(m.global_avg_pool2d(x)), {.out_features = 4, .bias = false}));
}

}  // namespace

TEST_CASE("plan table: without fusion a normalisation has steps of its own in both passes") {
  CHECK(table_of(block(), {.batch = 2}, NormFusion::never) == R"(forward
 conv1 reorder: input act768
 conv1: act768 val0 - act0
 bn1+relu moments: act0 mom0/56 act5376
 bn1+relu: act0 act5376 val128 val256 - act768
 conv2: act768 val384 - act1536
 bn2+relu moments: act1536 mom104/56 act5440
 bn2+relu: act1536 act5440 val512 val640 - act2304
 conv3: act2304 val768 - act3072
 bn3+add+relu moments: act3072 mom208/56 act5504
 bn3+add+relu: act3072 act5504 val896 val1024 act768 act3840
 avg_pool: act3840 act4736
 fc: act4736 val1152 - act4608
loss
 loss: act4608 labels step act4672 results -
backward
 fc backward_weights: act4736 act4672 grad1152 -
 fc backward_data: act4672 val1152 act5568 ready 9
 avg_pool backward: act5568 act4608
 bn3+add+relu backward sums: act4608 - act3072 act3840 act5504 mom264/48 grad896 grad1024 act4608
 bn3+add+relu backward: act4608 act3072 - act5504 val896 mom264/48 act3840 ready 7
 conv3 backward_weights: act2304 act3840 grad768 -
 conv3 backward_data: act3840 val768 act3072 ready 6
 bn2+relu backward sums: act3072 - act1536 act2304 act5440 mom160/48 grad512 grad640 -
 bn2+relu backward: act3072 act1536 act2304 act5440 val512 mom160/48 act3072 ready 4
 conv2 backward_weights: act768 act3072 grad384 -
 conv2 backward_data: act3072 val384 act1536 ready 3
 bn1+relu backward sums: act4608 act1536 act0 act768 act5376 mom56/48 grad128 grad256 act4608
 bn1+relu backward: act4608 act0 - act5376 val128 mom56/48 act4608 ready 1
 conv1 backward_weights reorder: input act0
 conv1 backward_weights: act0 act4608 grad0 - ready 0
running
 running statistics: mom0 buf0
arena 5632, workspace 0, folded 0, reorders 2, logits act4608, gradient act4672
)");
}

TEST_CASE("plan table: normalisations fused into convolutions, with statistics of each shard") {
  CHECK(table_of(block(), {.batch = 2, .shards = 2}, NormFusion::always) == R"(forward
 conv1 reorder: input act768
 conv1: act768 - - - val0 act0 mom0/56 act4608
 bn1+relu: act0 act4608 val128 val256 - act768
 conv2: act768 - - - val384 act1536 mom208/56 act4672
 conv3: act1536 act4672 val512 val640 val768 act2304 mom416/56 act4736
 bn3+add+relu: act2304 act4736 val896 val1024 act768 act3072
 avg_pool: act3072 act3968
 fc: act3968 val1152 - act3840
loss
 loss: act3840 labels step act3904 results -
backward
 fc backward_weights: act3968 act3904 grad1152 -
 fc backward_data: act3904 val1152 act4800 ready 9
 avg_pool backward: act4800 act3840
 bn3+add+relu backward sums: act3840 - act2304 act3072 act4736 mom528/48 grad896 grad1024 act3840
 bn3+add+relu backward: act3840 act2304 - act4736 val896 mom528/48 act3072 ready 7
 conv3 backward_weights: act1536 act4672 val512 val640 act3072 grad768
 conv3 backward_data: act3072 val768 - act1536 - act4672 val512 val640 mom320/48 grad512 grad640 act2304 ready 6
 bn2+relu backward: act2304 act1536 - act4672 val512 mom320/48 act2304 ready 4
 conv2 backward_weights: act768 act2304 grad384 -
 conv2 backward_data: act2304 val384 act3840 act0 act768 act4608 - - mom112/48 grad128 grad256 act1536 ready 3
 bn1+relu backward: act1536 act0 - act4608 val128 mom112/48 act1536 ready 1
 conv1 backward_weights reorder: input act0
 conv1 backward_weights: act0 act1536 grad0 - ready 0
running
 running statistics: mom0 buf0
arena 4864, workspace 768, folded 0, reorders 2, logits act3840, gradient act3904
)");
}

TEST_CASE("plan table: normalisations fused into convolutions, with synchronised statistics") {
  const PlanOptions options{.batch = 2, .norm = BatchNormMode::sync, .shards = 2};
  CHECK(table_of(block(), options, NormFusion::always) == R"(forward
 conv1 reorder: input act768
 conv1: act768 - - - val0 act0 mom0/56 - segment
 bn1+relu statistics: mom0 act4608
 bn1+relu: act0 act4608 val128 val256 - act768
 conv2: act768 - - - val384 act1536 mom208/56 - segment
 bn2+relu statistics: mom208 act4672
 conv3: act1536 act4672 val512 val640 val768 act2304 mom416/56 - segment
 bn3+add+relu statistics: mom416 act4736
 bn3+add+relu: act2304 act4736 val896 val1024 act768 act3072
 avg_pool: act3072 act3968
 fc: act3968 val1152 - act3840
loss
 loss: act3840 labels step act3904 results -
backward
 fc backward_weights: act3968 act3904 grad1152 -
 fc backward_data: act3904 val1152 act4800 ready 9
 avg_pool backward: act4800 act3840
 bn3+add+relu backward sums: act3840 - act2304 act3072 act4736 mom528/48 grad896 grad1024 act3840 segment
 bn3+add+relu backward: act3840 act2304 - act4736 val896 mom528 act3072 ready 7
 conv3 backward_weights: act1536 act4672 val512 val640 act3072 grad768
 conv3 backward_data: act3072 val768 - act1536 - act4672 val512 val640 mom320/48 grad512 grad640 act2304 segment ready 6
 bn2+relu backward: act2304 act1536 - act4672 val512 mom320 act2304 ready 4
 conv2 backward_weights: act768 act2304 grad384 -
 conv2 backward_data: act2304 val384 act3840 act0 act768 act4608 - - mom112/48 grad128 grad256 act1536 segment ready 3
 bn1+relu backward: act1536 act0 - act4608 val128 mom112 act1536 ready 1
 conv1 backward_weights reorder: input act0
 conv1 backward_weights: act0 act1536 grad0 - ready 0
running
 running statistics: mom0 buf0
arena 4864, workspace 768, folded 0, reorders 2, logits act3840, gradient act3904
)");
}

TEST_CASE("plan table: an evaluation normalises by the running statistics") {
  CHECK(table_of(block(), {.batch = 2, .training = false}, NormFusion::never) == R"(forward
 conv1 reorder: input act768
 conv1: act768 val0 - act0
 bn1+relu statistics: buf0 buf128 act1536
 bn1+relu: act0 act1536 val128 val256 - act768
 conv2: act768 val384 - act0
 bn2+relu statistics: buf256 buf384 act2304
 bn2+relu: act0 act2304 val512 val640 - act1536
 conv3: act1536 val768 - act0
 bn3+add+relu statistics: buf512 buf640 act2304
 bn3+add+relu: act0 act2304 val896 val1024 act768 act1536
 avg_pool: act1536 act64
 fc: act64 val1152 - act0
loss
 loss: act0 labels step - results -
arena 2368, workspace 0, folded 0, reorders 1, logits act0, gradient -
)");
}

TEST_CASE("plan table: an evaluation folds normalisations into convolutions") {
  const PlanOptions options{.batch = 2, .training = false, .folds_norms = true};
  CHECK(table_of(block(), options, NormFusion::never) == R"(fold
 conv1 fold: val0 - val128 val256 buf0 buf128 folded0 folded64
 conv2 fold: val384 - val512 val640 buf256 buf384 folded128 folded256
 conv3 fold: val768 - val896 val1024 buf512 buf640 folded320 folded448
forward
 conv1 reorder: input act768
 conv1+bn1+relu: act768 folded0 folded64 act0
 conv2+bn2+relu: act0 folded128 folded256 act768
 conv3+bn3+add+relu: act768 folded320 folded448 act1536
 bn3+add+relu: act1536 act0 act1536
 avg_pool: act1536 act64
 fc: act64 val1152 - act0
loss
 loss: act0 labels step - results -
arena 2304, workspace 0, folded 512, reorders 1, logits act0, gradient -
)");
}
