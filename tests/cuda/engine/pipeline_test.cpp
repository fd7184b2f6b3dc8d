// Pipelines on simulated GPUs: the bits of the same micro-batches on one GPU per replica. Layers are not fused with
// their neighbours here: a fused op cannot be split between two stages, and its bits may differ from those of its
// parts.
#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "engine/base/test_modes.h"
#include "engine/pipeline/pipelined.h"
#include "support/catch.h"
#include "support/sanitized.h"

using namespace dp;
using namespace dp::test;

namespace {

class Unfused {
 public:
  Unfused() { engine::test_modes().norm_fusion = kernels::NormFusion::never; }
  ~Unfused() { engine::test_modes() = {}; }
};

DataParallelOptions one_gpu() { return on_gpus(1, 1); }

// `layout` on as many GPUs, one after another.
DataParallelOptions spread(DataParallelOptions options, const Layout& layout, PipelineSchedule schedule) {
  options = pipelined(options, layout, schedule);
  for (std::size_t i = 0; i < options.devices.size(); ++i) options.devices[i].index = static_cast<int>(i);
  return options;
}

DataParallelOptions unpipelined(DataParallelOptions options, const Layout& layout) {
  options = accumulating(options, layout);
  for (std::size_t i = 0; i < options.devices.size(); ++i) options.devices[i].index = static_cast<int>(i);
  return options;
}

void check_pipeline(const Model& model, const DataParallelOptions& options, const Layout& layout,
                    const std::vector<PipelineSchedule>& schedules, std::int64_t rows = 7) {
  const Trained expected = train(model, unpipelined(options, layout), rows);
  for (const PipelineSchedule schedule : schedules) {
    INFO(model.name() << ", " << layout.replicas << " replicas of " << layout.stages << " stages, schedule "
                      << static_cast<int>(schedule));
    check_same(train(model, spread(options, layout, schedule), rows), expected);
  }
}

}  // namespace

TEST_CASE("pipeline: simulated GPUs give the bits of one GPU, with every schedule") {
  const Unfused unfused;
  SimulatedGpus machine(3);
  check_pipeline(small_convnet(/*dropout=*/true), one_gpu(), {1, 3, 4},
                 {one_at_a_time, gpipe, one_f_one_b, zero_bubble}, 5);
}

TEST_CASE("pipeline: simulated GPUs give the bits of one GPU per replica, clipped, averaged and recomputed") {
  const Unfused unfused;
  SimulatedGpus machine(4);
  DataParallelOptions options = one_gpu();
  options.clip_grad_norm = 0.1;
  options.ema_decay = 0.9;
  check_pipeline(residual_net(/*relu=*/true, /*dropout=*/true), options, {2, 2, 2}, {one_f_one_b, zero_bubble}, 7);
  options.batch_norm = BatchNormMode::sync;
  options.pipeline.recompute = Recompute::stage;
  check_pipeline(residual_net(), options, {2, 2, 2}, {one_f_one_b}, 7);
}

// Two gradients of one tensor are added before they are rounded to 16 bits, but those that another stage has sent are
// added and rounded. So only the schedules agree bit for bit.
TEST_CASE("pipeline: with mixed precision all schedules give the same bits, close to those of one GPU") {
  const Unfused unfused;
  SimulatedGpus machine(2);
  const Model model = residual_net(/*relu=*/false);
  for (const Amp amp : {Amp::bfloat16, Amp::float16}) {
    DataParallelOptions options = one_gpu();
    options.amp = amp;
    const Layout layout{1, 2, 3};
    const Trained first = train(model, spread(options, layout, one_f_one_b), 7);
    for (const PipelineSchedule schedule : {gpipe, zero_bubble})
      check_same(train(model, spread(options, layout, schedule), 7), first);
    const Trained one = train(model, unpipelined(options, layout), 7);
    CHECK(first.stats.samples == one.stats.samples);
    CHECK(first.stats.loss_sum == Approx(one.stats.loss_sum).epsilon(1e-4));  // measured: 1.2e-5
  }
}

TEST_CASE("pipeline: the path between two GPUs does not change the bits") {
  const Unfused unfused;
  const Model model = small_convnet();
  Trained expected;
  {
    SimulatedGpus machine(2);
    expected = train(model, unpipelined(one_gpu(), {1, 1, 3}), 7);
  }
  for (const simt::Peer peers : {simt::Peer::works, simt::Peer::none, simt::Peer::corrupts}) {
    SimulatedGpus machine(2, peers);
    INFO("peers " << static_cast<int>(peers));
    check_same(train(model, spread(one_gpu(), {1, 2, 3}, one_f_one_b), 7), expected);
  }
}

TEST_CASE("pipeline: two stages may share a GPU") {
  const Unfused unfused;
  SimulatedGpus machine(1);
  const Model model = small_convnet();
  const Trained expected = train(model, accumulating(one_gpu(), {1, 1, 3}), 7);
  check_same(train(model, pipelined(one_gpu(), {1, 2, 3}, gpipe), 7), expected);
}

TEST_CASE("pipeline: with fused layers a pipeline on GPUs agrees with one GPU, and the choice of p2p is explained") {
  SimulatedGpus machine(2);
  const Model model = small_convnet();
  const Trained expected = train(model, unpipelined(one_gpu(), {1, 1, 3}), 7);
  const DataParallelOptions options = spread(one_gpu(), {1, 2, 3}, one_f_one_b);
  const Trained trained = train(model, options, 7);
  const Worst worst = worst_error(trained.state, expected.state);
  INFO("worst: " << worst.name);
  CHECK(worst.error <= 1e-5);
  const DataParallel net(model, options);
  CHECK(net.communicator_choice().what == "p2p");
  CHECK_THAT(net.communicator_choice().reason, Catch::Contains("pipeline"));
  CHECK(net.graphs_choice().what == "one of all replicas");
}

TEST_CASE(
    "pipeline: a step as one graph of all stages has the bits of the eager step, whatever happens between steps") {
  const Model model = narrow_convnet();
  struct Case {
    Layout layout;
    PipelineSchedule schedule;
    simt::Peer peers;
  };
  for (const auto& [layout, schedule, peers] :
       cases<Case>({{{1, 2, 3}, one_f_one_b, simt::Peer::works}, {{2, 2, 2}, zero_bubble, simt::Peer::none}},
                   {{{2, 2, 2}, zero_bubble, simt::Peer::none}})) {
    SimulatedGpus machine(layout.replicas * layout.stages, peers);
    simt::simulation().protect_memory = false;  // faster
    DataParallelOptions options = spread(one_gpu(), layout, schedule);
    options.clip_grad_norm = 0.5;
    options.ema_decay = 0.9;
    const Course eager = course_of(model, options, false), graphs = course_of(model, options, true);
    INFO(layout.replicas << " replicas");
    CHECK(graphs == eager);
    CHECK_THAT(graphs.steps, Catch::Contains("one graph of all replicas") && Catch::Contains(" nodes"));
  }
}

TEST_CASE("pipeline: the graph of a step makes the launches of the eager step in the same order") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  DataParallelOptions options = spread(one_gpu(), {1, 2, 4}, one_f_one_b);
  options.pipeline.recompute = Recompute::stage;
  const auto eager = launches_of_steps(model, options, false), graphs = launches_of_steps(model, options, true);
  std::size_t launches = 0;
  for (const auto& [stream, of_stream] : eager) launches += of_stream.size();
  CHECK(launches > 60);
  CHECK(eager == graphs);
}

TEST_CASE("pipeline: if the capture of a step fails at one of several places, steps run eagerly to the same bits") {
  const Model model = narrow_convnet();
  SimulatedGpus machine(2);
  simt::simulation().protect_memory = simt::simulation().delays = false;  // faster
  DataParallelOptions options = spread(one_gpu(), {1, 2, 3}, one_f_one_b);
  options.clip_grad_norm = 0.5;
  const Course eager = course_of(model, options, false);
  int failed = 0;
  for (int k = 1; k < 300; k += 1 + k) {
    simt::simulation().fail_capture = k;
    const Course course = course_of(model, options, true);
    INFO("operation " << k);
    CHECK(course == eager);
    failed += simt::simulation().fail_capture == 0;
    if (simt::simulation().fail_capture == 0) CHECK_THAT(course.steps, Catch::Contains("a graph capture failed"));
    simt::simulation().fail_capture = 0;
    CHECK(simt::live().graphs == 0);
  }
  CHECK(failed > 4);
}

TEST_CASE("pipeline: a failing stage on a simulated GPU ends all") {
  SimulatedGpus machine(2);
  ::setenv("DP_FAIL", "throw:backward:stage1:micro1:step1", 1);
  DataParallel net(small_convnet(), spread(one_gpu(), {1, 2, 3}, one_f_one_b));
  ::unsetenv("DP_FAIL");
  const Sgd sgd{.lr = 0.05f};
  net.train_step(random_batch(net.model(), 7), sgd);
  CHECK_THROWS_WITH(net.train_step(random_batch(net.model(), 7), sgd),
                    Catch::Contains("replica 0 stage 1 (cuda:1) failed in backward of micro-batch 1 of step 1"));
}
