// The cases that races_test.cpp omits: residual networks over every communicator, with shards and averages.
#include "cuda/engine/narrow_nets.h"
#include "cuda/simulated_gpus.h"
#include "simulated_cuda/nccl/nccl_recorder.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("race detector: steps of a residual network with shards and an average are free of races") {
  const Model model = residual_net(/*relu=*/true, /*dropout=*/true);
  for (const simt::Peer peers : {simt::Peer::works, simt::Peer::none}) {
    SimulatedGpus machine(2, peers);
    DataParallelOptions options = on_gpus(2, 2);
    options.batch_norm = BatchNormMode::sync;
    five_steps(model, options, 5);
    options.logical_shards = 4;
    options.ema_decay = 0.9;
    five_steps(model, options, 5);
  }
}

TEST_CASE("race detector: steps of a residual network over nccl are free of races in every reduction") {
  SimulatedGpus machine(2);
  const simt::SimulatedNccl nccl;
  for (const Reduce reduce : kReductions) {
    DataParallelOptions options = on_gpus(2, 2);
    options.comm = Comm::nccl;
    options.reduce = reduce;
    options.batch_norm = BatchNormMode::sync;
    options.bucket_bytes = 4000;
    five_steps(residual_net(/*relu=*/true, /*dropout=*/true), options, 5);
  }
  CHECK(nccl.launches(0) == nccl.launches(1));
  CHECK(nccl.communicators() == 6);
}
