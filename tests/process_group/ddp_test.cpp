// The multi-process engine against the single-process engine. The ranks are threads here; they communicate as processes
// do.
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/small_dataset.h"
#include "dp/error.h"
#include "dp/run_options.h"
#include "process_group/group_ranks.h"
#include "support/catch.h"
#include "support/failing.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/ink_run.h"

using namespace dp;
using namespace dp::test;

namespace {

using State = std::vector<NamedTensor>;

// The part of a batch that a rank's loader deals to it.
Batch part_of(const Batch& batch, int rank, int ranks) {
  const std::int64_t rows = (batch.size() + ranks - 1 - rank) / ranks;
  Batch part{Tensor(batch.images.shape().with_dim(0, rows)), Tensor(Shape{rows}, DType::i32),
             Tensor(Shape{rows}, DType::i64)};
  const std::int64_t pixels = batch.images.numel() / batch.size();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t from = rank + row * ranks;
    std::copy_n(batch.images.data<float>() + from * pixels, pixels, part.images.data<float>() + row * pixels);
    part.labels.data<std::int32_t>()[row] = batch.labels.data<std::int32_t>()[from];
    part.samples.data<std::int64_t>()[row] = batch.samples.data<std::int64_t>()[from];
  }
  part.global = batch.size();
  return part;
}

DataParallelOptions in_group(const DataParallelOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  DataParallelOptions own = options;
  own.devices = {options.devices.front()};
  own.process_group = group;
  return own;
}

constexpr Sgd kSgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 1e-3f};

struct Trained {
  State weights, state;
  Stats stats;
};

Trained train_dp(const Model& model, const DataParallelOptions& options, std::int64_t rows, int steps,
                 const Sgd& sgd = kSgd) {
  DataParallel net(model, options);
  for (int step = 0; step < steps; ++step)
    net.train_step(random_batch(model, rows, static_cast<std::uint64_t>(step)), sgd);
  net.evaluate(random_batch(model, rows, 99));
  return {net.weights(), net.optimizer_state().tensors, net.take_stats()};
}

Trained train_ddp(const Model& model, const DataParallelOptions& options, int ranks, std::int64_t rows, int steps,
                  const Sgd& sgd = kSgd) {
  Trained trained;
  all_ranks(ranks, [&](const auto& group) {
    DataParallel net(model, in_group(options, group));
    DP_HOLDS(net.size() == ranks);
    for (int step = 0; step < steps; ++step)
      net.train_step(part_of(random_batch(model, rows, static_cast<std::uint64_t>(step)), group->rank(), ranks), sgd);
    DP_HOLDS(net.replicas_identical());
    net.evaluate(part_of(random_batch(model, rows, 99), group->rank(), ranks));
    const Stats stats = net.take_stats();
    if (group->leads()) trained = {net.weights(), net.optimizer_state().tensors, stats};
  });
  return trained;
}

}  // namespace

TEST_CASE("one step of ddp and of dp on the same global batch are equal to 1e-5 of the distance moved") {
  const Model model = smooth_convnet();
  const State origin = DataParallel(model, on_cpus(1)).weights();
  for (const int ranks : {1, 2, 3, 4})
    for (const std::int64_t rows : {24, 23}) {  // equal and unequal shards
      INFO("ranks " << ranks << ", rows " << rows);
      const Trained dp = train_dp(model, on_cpus(ranks), rows, 1);
      const Trained ddp = train_ddp(model, on_cpus(1), ranks, rows, 1);
      const Worst worst = worst_error(ddp.weights, dp.weights, &origin);
      INFO(worst.name << " " << worst.error);
      CHECK(worst.error <= 1e-5);
      CHECK(worst_error(ddp.state, dp.state).error <= 1e-5);
      CHECK(ddp.stats.samples == dp.stats.samples);
      CHECK(dp.stats.top5 > 0);
      CHECK(ddp.stats.top1 == dp.stats.top1);
      CHECK(ddp.stats.top5 == dp.stats.top5);
      CHECK(ddp.stats.loss_sum == Approx(dp.stats.loss_sum).epsilon(1e-5));
    }
}

TEST_CASE("a step with batch normalisation over ranks equals one over replicas") {
  const Model model = residual_net(/*relu=*/false);
  // The scales of batch normalisation begin at 1. At a rate of 0.1 one of them moves so little that the rounding of its
  // new value alone is 2.4e-5 of the distance.
  const Sgd sgd{.lr = 1, .momentum = kSgd.momentum, .weight_decay = kSgd.weight_decay};
  DataParallelOptions options = on_cpus(1);
  const State origin = DataParallel(model, options).weights();
  for (const BatchNormMode mode : {BatchNormMode::sync, BatchNormMode::pooled, BatchNormMode::master})
    for (const int ranks : {1, 2, 3, 4}) {
      // dp and ddp deal samples differently. Modes with per-shard statistics are therefore comparable on one rank only.
      if (mode != BatchNormMode::sync && ranks > 1) continue;
      options.batch_norm = mode;
      DataParallelOptions replicas = options;
      replicas.devices = cpus(ranks);
      INFO("ranks " << ranks << ", mode " << static_cast<int>(mode));
      const Trained dp = train_dp(model, replicas, 24, 1, sgd), ddp = train_ddp(model, options, ranks, 24, 1, sgd);
      const Worst worst = worst_error(ddp.weights, dp.weights, &origin);
      INFO(worst.name << " " << worst.error);
      CHECK(worst.error <= 1e-5);
      CHECK(worst_error(ddp.state, dp.state).error <= 1e-5);
      CHECK(ddp.stats.loss_sum == Approx(dp.stats.loss_sum).epsilon(1e-5));
    }
}

TEST_CASE("ddp: each mode of batch normalisation tracks the statistics of its documented shards") {
  const Model model = residual_net(/*relu=*/false);
  const std::int64_t rows = 24;
  DataParallelOptions options = on_cpus(1);
  // Reorders the batch so that dp's shards hold the same samples as the ranks' parts.
  const Batch batch = random_batch(model, rows);
  for (const BatchNormMode mode : {BatchNormMode::master, BatchNormMode::pooled}) {
    options.batch_norm = mode;
    DataParallelOptions replicas = options;
    replicas.devices = cpus(2);
    Batch sorted = random_batch(model, rows);
    const std::int64_t half = rows / 2;
    for (int rank = 0; rank < 2; ++rank) {
      const Batch part = part_of(batch, rank, 2);
      std::copy_n(part.images.data<float>(), part.images.numel(),
                  sorted.images.data<float>() + rank * part.images.numel());
      std::copy_n(part.labels.data<std::int32_t>(), half, sorted.labels.data<std::int32_t>() + rank * half);
      std::copy_n(part.samples.data<std::int64_t>(), half, sorted.samples.data<std::int64_t>() + rank * half);
    }
    DataParallel dp(model, replicas);
    dp.train_step(sorted, kSgd);
    State ddp;
    all_ranks(2, [&](const auto& group) {
      DataParallel net(model, in_group(options, group));
      net.train_step(part_of(batch, group->rank(), 2), kSgd);
      if (group->leads()) ddp = net.weights();
    });
    INFO("mode " << static_cast<int>(mode));
    CHECK(bit_equal(ddp, dp.weights()));  // same shards, same reduction tree
  }
}

TEST_CASE("ddp: micro-batches, clipping, skipping and dropout work as in dp") {
  const Model smooth = smooth_convnet(), dropping = small_convnet(/*dropout=*/true);
  const auto compare = [](const Model& model, DataParallelOptions options, double tolerance) {
    DataParallelOptions replicas = options;
    replicas.devices = cpus(3);
    const State origin = DataParallel(model, options).weights();
    const Trained dp = train_dp(model, replicas, 24, 2), ddp = train_ddp(model, options, 3, 24, 2);
    const Worst worst = worst_error(ddp.weights, dp.weights, &origin);
    INFO(worst.name << " " << worst.error);
    CHECK(worst.error <= tolerance);
  };
  DataParallelOptions options = on_cpus(1);
  options.grad_accum_steps = 2;
  compare(smooth, options, 1e-5);
  options = on_cpus(1);
  options.clip_grad_norm = 0.1;
  compare(smooth, options, 1e-5);
  options = on_cpus(1);
  options.on_nonfinite = OnNonfinite::skip;
  compare(smooth, options, 1e-5);
  compare(dropping, on_cpus(1), 1e-4);  // looser at kinks: rounding may flip a ReLU
}

TEST_CASE("ddp: a bfloat16 reduction has the same bits with buckets of any size and is close to float32") {
  const Model model = smooth_convnet();
  const State origin = DataParallel(model, on_cpus(1)).weights();
  DataParallelOptions options = on_cpus(1);
  options.clip_grad_norm = 5;
  const Trained exact = train_ddp(model, options, 3, 23, 3);
  options.reduce_dtype = DType::bf16;
  options.comm = Comm::host;
  const Trained rounded = train_ddp(model, options, 3, 23, 3);
  options.bucket_bytes = 2000;
  const Trained small_buckets = train_ddp(model, options, 3, 23, 3);
  CHECK(bit_equal(rounded.weights, small_buckets.weights));
  CHECK_FALSE(bit_equal(rounded.weights, exact.weights));
  CHECK(worst_error(rounded.weights, exact.weights, &origin).error < 0.05);
  CHECK(rounded.stats.grad_norm == Approx(exact.stats.grad_norm).epsilon(0.02));
}

TEST_CASE("ddp: invalid bfloat16 reductions are rejected on every rank") {
  const Model model = smooth_convnet();
  const auto refusals = [&](bool by_mpi) {
    return on_ranks(2, [&](const auto& group) {
      DataParallelOptions options = in_group(on_cpus(1), group);
      options.comm = by_mpi ? Comm::mpi : Comm::host;
      if (by_mpi || group->leads()) options.reduce_dtype = DType::bf16;
      DataParallel(model, options);
    });
  };
  for (const bool by_mpi : {false, true})
    for (const RankFailure& failure : refusals(by_mpi)) {
      CHECK(failure.failed);
      CHECK(failure.code == ErrorCode::usage);
      CHECK_THAT(failure.text,
                 Catch::Contains("--reduce-dtype") && Catch::Contains(by_mpi ? "--comm mpi" : "the same one"));
    }
}

TEST_CASE("ddp: every rank receives what rank 0 sets") {
  const Model model = residual_net();
  DataParallelOptions options = on_cpus(1);
  options.ema_decay = 0.5;
  const Trained other = train_dp(model, options, 12, 3);
  all_ranks(3, [&](const auto& group) {
    DataParallel net(model, in_group(options, group));
    net.set_weights(group->leads() ? other.weights : State{});
    net.set_optimizer_state(group->leads() ? OptimizerState{"sgd", 3, other.state} : OptimizerState{});
    DP_HOLDS(net.optimizer_state().updates == 3);
    net.train_step(part_of(random_batch(model, 12, 7), group->rank(), 3), kSgd);
    DP_HOLDS(net.replicas_identical());
    DP_HOLDS(net.average_weights().size() == other.weights.size());
    DP_HOLDS(net.replicas_identical());
  });
}

TEST_CASE("ddp: ranks with different data are refused, in a run and in an evaluation") {
  const Model model = small_convnet();
  for (const bool evaluates : {false, true}) {
    const auto failures = on_ranks(2, [&](const auto& group) {
      TrainerOptions options{.epochs = 1, .batch_size = 8};
      options.parallel = in_group(on_cpus(1), group);
      const DatasetPair data =
          datasets::synthetic(model.input(), model.output()[0], 24, 16 + (evaluates ? group->rank() : 0),
                              evaluates ? 1 : static_cast<std::uint64_t>(group->rank()));
      Trainer trainer(model, data, options);
      evaluates ? trainer.evaluate() : trainer.run();
    });
    for (const RankFailure& failure : failures) {
      CHECK(failure.code == ErrorCode::data);
      CHECK_THAT(failure.text,
                 Catch::Contains("the data set of rank 1 (") && Catch::Contains("give every rank the same files"));
    }
  }
}

TEST_CASE("ddp: every rank receives the classes that rank 0 reads, however many") {
  const TemporaryFolder temp;
  Checkpoint checkpoint;
  checkpoint.state.data.emplace();
  for (int i = 0; i < 20000; ++i) checkpoint.state.data->classes.push_back("class " + std::to_string(i));
  save_checkpoint(temp / "saved", checkpoint);
  all_ranks(2, [&](const auto& group) {
    TrainerOptions options;
    options.parallel.process_group = group;
    options.resume = group->leads() ? temp / "saved" : "on another host";
    DP_HOLDS(recorded_classes(options) == checkpoint.state.data->classes);
    options.resume.clear();
    DP_HOLDS(recorded_classes(options) == std::nullopt);
  });
}

TEST_CASE("ddp: a rank that fails in any phase ends all ranks with its error") {
  const Model model = small_convnet();
  for (const std::string& phase : std::vector<std::string>{"forward", "backward", "reduce", "update"}) {
    const FailEnvironment fail("throw:" + phase + ":dev1:step1");
    const auto failures = on_ranks(3, [&](const auto& group) {
      DataParallel net(model, in_group(on_cpus(1), group));
      for (int step = 0; step < 4; ++step) net.train_step(part_of(random_batch(model, 12), group->rank(), 3), kSgd);
    });
    for (int rank = 0; rank < 3; ++rank) {
      const RankFailure& failure = failures[static_cast<std::size_t>(rank)];
      INFO(phase << ", rank " << rank << ": " << failure.text);
      CHECK(failure.failed);
      CHECK(failure.text.find("rank 1 (cpu) failed in " + phase + " of step 1") != std::string::npos);
    }
  }
}

TEST_CASE("ddp: an engine that fails to start leaves nothing that the end of the group would access") {
  const Model model = small_convnet();
  const auto failures = on_ranks(2, [&](const auto& group) {
    DataParallelOptions options = in_group(on_cpus(1), group);
    options.comm = group->leads() ? Comm::p2p : Comm::mpi;  // refused after the abort flag was created
    DataParallel net(model, options);
  });
  for (const RankFailure& failure : failures) CHECK(failure.failed);
}

TEST_CASE("ddp: options for a single process are rejected") {
  const Model model = small_convnet();
  const auto refused = [&](const std::function<void(DataParallelOptions&)>& change, const std::string& why) {
    DataParallelOptions options = in_group(on_cpus(1), ProcessGroup::join({}));
    change(options);
    CHECK_THROWS_WITH(DataParallel(model, options), Catch::Matchers::Contains(why));
  };
  refused([](auto& o) { o.devices = cpus(2); }, "one device");
  refused([](auto& o) { o.reduce = Reduce::sharded; }, "--reduce sharded requires one process");
  refused([](auto& o) { o.loss = LossAt::gathered; }, "loss local");
  refused([](auto& o) { o.logical_shards = 4; }, "one process");
  refused([](auto& o) { o.split_weights = {1}; }, "one process");
  DataParallel net(model, in_group(on_cpus(1), ProcessGroup::join({})));
  CHECK_THROWS_WITH(net.forward(random_batch(model, 4).images), Catch::Matchers::Contains("train_step"));
}

TEST_CASE("ddp: a run with targets has the figures of all ranks, those of a run in one process") {
  for (const OutputLoss& loss : {OutputLoss(MseLoss{}), OutputLoss(BceWithLogitsLoss{})}) {
    TrainerOptions options = ink_options();
    options.parallel.output_loss = loss;
    options.metrics = {{"sum", [](const EvaluatedLogits& all) {
                          const auto targets = all.targets.span<float>();
                          return std::accumulate(targets.begin(), targets.end(), 0.0);
                        }}};
    const DatasetPair data = ink(/*decided=*/std::holds_alternative<BceWithLogitsLoss>(loss));
    const RunSummary one = Trainer(ink_model(), data, options).run();
    std::vector<RunSummary> ranks(3);
    all_ranks(3, [&](const auto& group) {
      TrainerOptions own = options;
      own.parallel = in_group(own.parallel, group);
      ranks[static_cast<std::size_t>(group->rank())] = Trainer(ink_model(), data, own).run();
    });
    REQUIRE(one.metrics.size() == (std::holds_alternative<MseLoss>(loss) ? 4 : 3));
    for (const RunSummary& rank : ranks) {
      REQUIRE(rank.metrics.size() == one.metrics.size());
      for (std::size_t i = 0; i < one.metrics.size(); ++i) {
        INFO(one.metrics[i].name);
        CHECK(rank.metrics[i].name == one.metrics[i].name);
        CHECK(rank.metrics[i].value == Approx(one.metrics[i].value).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("ddp: an evaluation of several views has the figures of all ranks, those of an evaluation in one process") {
  ModelBuilder m("linear", Shape{1, 28, 28});
  const Model classes = m.build(m.linear("fc", m.flatten(m.input()), {.out_features = 10}));
  for (const bool targets : {false, true}) {
    TrainerOptions options = targets ? ink_options() : tiny_options();
    options.epochs = 1;
    options.optimizer = Sgd{.lr = 0};
    options.test_augmentation = TestAugmentation::flip_translate;
    const auto run = [&](const TrainerOptions& own) {
      return Trainer(targets ? ink_model() : classes, targets ? ink() : tiny_digits(), own).run();
    };
    const RunSummary one = run(options);
    for (const int ranks : {2, 3}) {
      INFO(ranks << " ranks, targets: " << targets);
      RunSummary summary;
      all_ranks(ranks, [&](const auto& group) {
        TrainerOptions own = options;
        own.parallel = in_group(own.parallel, group);
        const RunSummary mine = run(own);
        if (group->leads()) summary = mine;
      });
      CHECK(summary.test_loss == Approx(one.test_loss).epsilon(1e-6));
      if (!targets) CHECK(summary.top1 == one.top1);
      REQUIRE(summary.metrics.size() == one.metrics.size());
      for (std::size_t i = 0; i < one.metrics.size(); ++i)
        CHECK(summary.metrics[i].value == Approx(one.metrics[i].value).epsilon(1e-5));
    }
  }
}

TEST_CASE("ddp: a trainer's run evaluates every sample once, saves on rank 0, and is resumed by dp") {
  const TemporaryFolder folder;
  const DatasetPair data{std::make_shared<SmallDataset>(50, Shape{3, 11, 11}),
                         std::make_shared<SmallDataset>(37, Shape{3, 11, 11})};
  ModelBuilder wide("wide", Shape{3, 11, 11});
  const Model ten = wide.build(wide.linear(
      "fc", wide.flatten(wide.batch_norm2d("bn", wide.conv2d("conv", wide.input(), {.out_channels = 4, .kernel = 3}))),
      {.out_features = 10}));
  TrainerOptions options;
  options.epochs = 2;
  options.batch_size = 12;
  options.parallel = on_cpus(1);
  options.workers = 1;
  options.output_dir = folder.path() + "/run";
  RunSummary summary;
  std::mutex mutex;
  bool leads = true;
  std::vector<std::int64_t> evaluated;
  std::vector<double> counted_by_rate;
  const auto failures = on_ranks(3, [&](const auto& group) {
    TrainerOptions own = options;
    own.parallel.process_group = group;
    if (!group->leads()) own.output_dir = "/nowhere/at/all";  // only rank 0 writes
    Trainer trainer(ten, data, own);
    TrainerCallbacks callbacks;
    callbacks.on_eval = [&](const EvalReport& report) {
      const std::scoped_lock lock(mutex);
      leads = leads && group->leads();
      evaluated.push_back(report.stats.samples);
    };
    callbacks.on_epoch = [&](const EpochReport& report) {
      const std::scoped_lock lock(mutex);
      counted_by_rate.push_back(report.images_per_second * report.seconds);
    };
    const RunSummary mine = trainer.run(callbacks);
    if (group->leads()) summary = mine;
  });
  CHECK(leads);
  CHECK(evaluated == std::vector<std::int64_t>{37, 37});
  REQUIRE(counted_by_rate.size() == 2);
  for (const double images : counted_by_rate) CHECK(images == Approx(51));  // of all ranks: 50, padded to 3 x 17
  CHECK(summary.steps == 2 * 5);
  CHECK(summary.engine == "ddp");
  CHECK(summary.devices == std::vector<std::string>{"cpu", "cpu", "cpu"});
  const auto record = nlohmann::json::parse(read_text(folder.path() + "/run/predictions.json"));
  CHECK(record.at("samples") == 37);
  const auto& counts = record.at("confusion");
  REQUIRE(counts.size() == 10);
  std::int64_t counted = 0, right = 0;
  for (std::size_t truth = 0; truth < 10; ++truth) {
    for (const auto& count : counts[truth]) counted += count.get<std::int64_t>();
    right += counts[truth].at(truth).get<std::int64_t>();
  }
  CHECK(counted == 37);
  CHECK(static_cast<double>(right) * 100 / 37 == Approx(summary.top1));

  const auto resumed_by = [&](int ranks, std::int64_t epochs) {
    TrainerOptions more = options;
    more.epochs = epochs;
    more.resume = "auto";
    more.parallel.devices = cpus(ranks);
    Trainer trainer(ten, data, more);
    return trainer.run();
  };
  const RunSummary dp = resumed_by(2, 3);
  CHECK(dp.steps == 3 * 5);
  CHECK(dp.engine == "dp");
  std::int64_t steps = 0;
  all_ranks(2, [&](const auto& group) {
    TrainerOptions more = options;
    more.epochs = 4;
    more.resume = "auto";
    more.parallel.process_group = group;
    const RunSummary mine = Trainer(ten, data, more).run();
    if (group->leads()) steps = mine.steps;
  });
  CHECK(steps == 4 * 5);
}

TEST_CASE("ddp: a stop requested on one rank stops all at the same step, with a checkpoint") {
  const TemporaryFolder folder;
  const Model model = [] {
    ModelBuilder m("linear", Shape{1, 3, 4});
    return m.build(m.linear("fc", m.flatten(m.input()), {.out_features = 10}));
  }();
  const DatasetPair data{std::make_shared<SmallDataset>(64), std::make_shared<SmallDataset>(16)};
  std::vector<std::int64_t> steps(3, -1);
  std::atomic<int> stop{0};
  all_ranks(3, [&](const auto& group) {
    TrainerOptions options;
    options.epochs = 1000;
    options.batch_size = 8;
    options.parallel = on_cpus(1);
    options.parallel.process_group = group;
    options.workers = 1;
    options.print_freq = 1;
    options.output_dir = folder.path() + "/run";
    const std::atomic<int> never{0};
    options.stop = group->rank() == 2 ? &stop : &never;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport& report) {
      if (report.step == 11) stop.store(2);
    };
    const RunSummary summary = Trainer(model, data, options).run(callbacks);
    DP_HOLDS(summary.interrupted);
    steps[static_cast<std::size_t>(group->rank())] = summary.steps;
  });
  CHECK(steps[0] >= 11);
  CHECK(steps[0] <= 14);
  CHECK(steps == std::vector<std::int64_t>(3, steps[0]));
  CHECK(load_checkpoint(folder.path() + "/run/checkpoints/last").state.step == steps[0]);
}
