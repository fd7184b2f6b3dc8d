// A rank that cannot read a sample ends the run of all ranks, with its finished steps saved.
#include <filesystem>

#include "data/small_dataset.h"
#include "dp/checkpoint.h"
#include "dp/dp.h"
#include "process_group/group_ranks.h"
#include "support/fake_time.h"
#include "support/spoiled_dataset.h"
#include "support/temporary_folder.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr std::int64_t kBatch = 8, kBatches = 8;

Model linear() {
  ModelBuilder m("linear", Shape{1, 3, 4});
  const auto norm = m.batch_norm2d("bn", m.input());
  return m.build(m.linear("fc", m.flatten(norm), {.out_features = 10}));
}

std::shared_ptr<const Dataset> data_of(std::int64_t size, std::int64_t spoiled = -1) {
  return std::make_shared<SpoiledDataset>(std::make_shared<SmallDataset>(size), spoiled);
}

TrainerOptions options_in(const std::string& folder, const std::shared_ptr<ProcessGroup>& group) {
  TrainerOptions options;
  options.epochs = 2;
  options.batch_size = kBatch;
  options.parallel = on_cpus(1);
  options.parallel.process_group = group;
  options.workers = 1;
  options.shuffle = false;
  options.output_dir = folder;
  options.save_every_epochs = 0;
  return options;
}

std::string train_in(const std::string& folder) {
  std::string weights;
  all_ranks(2, [&](const auto& group) {
    TrainerOptions options = options_in(folder, group);
    options.resume = "auto";
    const RunSummary summary = Trainer(linear(), {data_of(64), data_of(300)}, options).run();
    if (group->leads()) weights = summary.weights_sha256;
  });
  return weights;
}

// Trains with samples that throw. Returns the step of the checkpoint, or 0 if there is none.
std::int64_t saved_step(const std::string& folder, const DatasetPair& data, int failing) {
  std::vector<std::int64_t> steps(2, -1);
  const std::vector<RankFailure> failures =
      on_ranks(2, [&](const auto& group) { Trainer(linear(), data, options_in(folder, group)).run(); });
  for (int rank = 0; rank < 2; ++rank) {
    const RankFailure& failure = failures[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << failure.text);
    CHECK(failure.failed);
    CHECK(failure.text.find(SpoiledDataset::kFault) != std::string::npos);
    if (rank != failing) CHECK(failure.text.find("rank " + std::to_string(failing)) != std::string::npos);
  }
  const std::string last = folder + "/checkpoints/last";
  return std::filesystem::exists(last) ? load_checkpoint(last).state.step : 0;
}

}  // namespace

TEST_CASE("ddp: a sample that one rank cannot read ends all ranks at the same step, which is saved") {
  const TemporaryFolder temp;
  const std::string whole = train_in(temp / "whole");
  for (const std::int64_t batch : {0, 1, 2, 5, 7})
    for (const int rank : {0, 1}) {
      INFO("batch " << batch << ", rank " << rank);
      const std::string folder = temp / ("run-" + std::to_string(batch) + "-" + std::to_string(rank));
      const std::int64_t sample = batch * kBatch + 2 + rank;  // samples are dealt to the ranks in turn
      const std::int64_t step = saved_step(folder, {data_of(64, sample), data_of(300)}, rank);
      CHECK(step >= batch - 1);
      CHECK(step <= batch);
      if (step > 0) CHECK(train_in(folder) == whole);
    }
}

TEST_CASE("ddp: a test sample that one rank cannot read ends all ranks after the finished steps, which are saved") {
  const TemporaryFolder temp;
  const std::string whole = train_in(temp / "whole");
  for (const std::int64_t sample : {0, 1, 150, 299}) {  // in the first, a middle and the last batch
    INFO("sample " << sample);
    const std::string folder = temp / ("run-" + std::to_string(sample));
    const int rank = static_cast<int>(sample % 2);
    CHECK(saved_step(folder, {data_of(64), data_of(300, sample)}, rank) == kBatches);
    CHECK(train_in(folder) == whole);
  }
}

TEST_CASE("ddp: a test sample that one rank cannot read is an error of a lone evaluation") {
  const DatasetPair data{data_of(64), data_of(300, 299)};
  const std::vector<RankFailure> failures =
      on_ranks(2, [&](const auto& group) { Trainer(linear(), data, options_in("", group)).evaluate(); });
  for (const RankFailure& failure : failures) CHECK(failure.text.find(SpoiledDataset::kFault) != std::string::npos);
}

TEST_CASE("ddp: an exception of a callback of rank 0 ends all ranks, with the finished steps saved") {
  const TemporaryFolder temp;
  const std::string whole = train_in(temp / "whole");
  const std::string folder = temp / "run";
  on_ranks(2, [&](const auto& group) {
    TrainerCallbacks callbacks;
    callbacks.on_step = [](const StepReport&) { throw Error(ErrorCode::io, "the embedder's log is full"); };
    Trainer(linear(), {data_of(64), data_of(300)}, options_in(folder, group)).run(callbacks);
  });
  CHECK(load_checkpoint(folder + "/checkpoints/last").state.step == 1);
  CHECK(train_in(folder) == whole);
}

TEST_CASE("ddp: the time between saves is that of rank 0, and counts where the ranks report") {
  const TemporaryFolder temp;
  TimeOfRates time;
  all_ranks(2, [&](const auto& group) {
    TrainerOptions options = options_in(temp.path(), group);
    options.save_every_seconds = 25;
    options.checkpoint_hist = 9;
    options.print_freq = 2;
    TrainerCallbacks callbacks;
    callbacks.on_step = [&](const StepReport&) { time.pass(group->leads() ? 10 : 0); };
    Trainer(linear(), {data_of(64), data_of(300)}, options).run(callbacks);
  });
  for (int step = 1; step <= 16; ++step) {
    INFO("step " << step);
    const bool due = step == 5 || step == 9 || step == 15 || step == 16;
    CHECK(std::filesystem::exists(temp / ("checkpoints/step-" + std::to_string(step))) == due);
  }
}
