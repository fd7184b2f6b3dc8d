// The tables and lines at the beginning and the end of a run, exactly.
#include <fmt/format.h>

#include "engine/base/text.h"
#include "engine/train/console.h"
#include "support/catch.h"
#include "support/emulated_bfloat16.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::tiny_digits;
using dp::test::tiny_model;
using dp::test::tiny_options;

std::string row(const std::string& replica, std::int64_t batch, const DataParallel& net, int device) {
  return fmt::format("{:>7}  cpu        {:>7}        1 {:>11}\n", replica, batch,
                     mebibytes(net.memory_use(device).total()));
}

std::string head(const Model& model) {
  return fmt::format("{}: {} parameters, data set digits\nreplica  device       batch  threads      memory\n",
                     model.name(), with_separators(model.parameter_count()));
}

const std::string kChoices =
    "comm host: all replicas are in one process and share its memory\ngraphs none: only GPUs have CUDA graphs\n";

TEST_CASE("the table at the start has a row for each replica, and every choice") {
  TrainerOptions options = tiny_options("runs/x");
  options.batch_size = 49;
  options.parallel.reduce = Reduce::master;
  DataParallel net(tiny_model(), options.parallel);
  const std::string table = head(net.model()) + row("0", 25, net, 0) + row("1", 24, net, 1) +
                            "global batch 49, reduce master, loss local, split balanced, bn master, seed 42, "
                            "deterministic\n" +
                            kChoices;
  CHECK(start_table(net, options) == table + "run folder runs/x\n");
  options.dry_run = true;
  CHECK(start_table(net, options) == table);
  options.dry_run = false, options.output_dir = "";
  CHECK(start_table(net, options) == table);
}

TEST_CASE("the table at the start shows weights of a split, logical shards, precision and smaller sums") {
  TrainerOptions options = tiny_options();
  options.parallel.deterministic = false;
  options.parallel.reduce = Reduce::all_reduce;
  options.parallel.reduce_dtype = DType::bf16;
  options.parallel.seed = 7;
  options.parallel.split_weights = {3, 1};
  {
    DataParallel net(tiny_model(), options.parallel);
    CHECK(start_table(net, options) ==
          head(net.model()) + row("0", 36, net, 0) + row("1", 12, net, 1) +
              "global batch 48, reduce allreduce in bfloat16, loss local, split 3:1, bn master, seed 7\n" + kChoices);
  }
  options.parallel.split_weights.clear();
  options.parallel.reduce_dtype = DType::f32;
  options.parallel.logical_shards = 4;
  options.batch_size = 50;
  {
    DataParallel net(tiny_model(), options.parallel);
    CHECK(start_table(net, options) ==
          head(net.model()) + row("0", 26, net, 0) + row("1", 24, net, 1) +
              "global batch 50, reduce allreduce, loss local, split balanced, bn master, seed 7, deterministic, "
              "4 logical shards\n" +
              kChoices);
  }
  options.batch_size = 3;  // fewer images than shards
  {
    DataParallel net(tiny_model(), options.parallel);
    CHECK_THAT(start_table(net, options), Catch::Contains(row("0", 2, net, 0) + row("1", 1, net, 1)));
  }
  options.parallel.logical_shards = 0;
  options.parallel.devices = cpus(1);
  options.parallel.reduce = Reduce::master;
  options.parallel.reduce_dtype = DType::bf16;
  options.parallel.amp = Amp::bfloat16;
  const test::EmulatedBfloat16 emulated;
  DataParallel net(tiny_model(), options.parallel);
  CHECK_THAT(start_table(net, options),
             Catch::Contains("\nglobal batch 3, reduce master (nothing to reduce), loss local, split balanced, bn "
                             "master, seed 7, amp bfloat16\n"));
}

TEST_CASE("the table at the start of a pipeline names replica and stage of each device") {
  TrainerOptions options = tiny_options();
  options.parallel.deterministic = false;
  options.parallel.devices = cpus(4);
  options.parallel.pipeline.stages = 2;
  DataParallel net(models::mlp({.hidden = {24, 24}}), options.parallel);
  const std::string table = start_table(net, options);
  CHECK_THAT(table, Catch::StartsWith(head(net.model()) + row("0.0", 24, net, 0) + row("0.1", 24, net, 1) +
                                      row("1.0", 24, net, 2) + row("1.1", 24, net, 3) + "global batch 48, ") &&
                        Catch::Contains("\n" + net.describe_pipeline() + "\ncomm "));
}

TEST_CASE("the table of layers has a row for each and a total, in the order of a step") {
  CHECK(layer_table("cpu\x01", {{"conv\x02", "winograd\x03", 0.003, 0.0015}, {"(update)", "", 0.001, 0}}) ==
        "Time per layer of replica 0 (cpu\\x01), median of the traced steps\n"
        "        ms      %   floor ms x floor  layer                                implementation\n"
        "     3.000   75.0      1.500     2.0  conv\\x02                             winograd\\x03\n"
        "     1.000   25.0          -       -  (update)                             \n"
        "     4.000  100.0      1.500     2.7  all                                  \n");
  CHECK_THAT(layer_table("cpu", {{"a", "b", 0, 0}}),
             Catch::EndsWith("     0.000    0.0          -       -  all                                  \n"));
}

TEST_CASE("the table of phases numbers replicas, or the stages of each replica") {
  std::vector<PhaseTimes> times(3);
  times[0] = {.scatter = 1, .forward = 2, .backward = 3, .reduce = 4, .update = 5, .broadcast = 6};
  times[0].waiting = 7, times[2].graph = 8;
  CHECK(phase_table({"cpu", "a long device name"}, times, 40) ==
        "seconds     replica 0  replica 1\n                  cpu a long dev\n"
        "scatter          1.00       0.00\nforward          2.00       0.00\nbackward         3.00       0.00\n"
        "reduce           4.00       0.00\nupdate           5.00       0.00\nbroadcast        6.00       0.00\n"
        "graph            0.00       0.00\nwaiting          7.00       0.00\n"
        "seconds     replica 2\n                     \n"
        "scatter          0.00\nforward          0.00\nbackward         0.00\nreduce           0.00\n"
        "update           0.00\nbroadcast        0.00\ngraph            8.00\nwaiting          0.00\n");
  CHECK_THAT(phase_table({}, std::vector<PhaseTimes>(4), 0, 2),
             Catch::StartsWith("seconds     stage 0.0  stage 0.1  stage 1.0  stage 1.1\n"));
  CHECK(phase_table({"cpu"}, {}).empty());
}

TEST_CASE("the closing text of a run, exactly") {
  RunSummary summary;
  summary.devices = {"cpu", "cpu"};
  summary.phases.assign(2, {});
  summary.layers = {{"l", "i", 0.5, 0.25}};
  summary.steps = 21, summary.epochs = 3, summary.skipped_steps = 2, summary.classes = 6;
  summary.seconds_train = 61, summary.images_per_second = 1234.4, summary.train_loss = 0.123456;
  summary.top1 = 97.5, summary.top5 = 99.25, summary.test_loss = 0.0951;
  summary.output_dir = "runs/x\x01";
  const std::string tables = layer_table("cpu", summary.layers) + phase_table(summary.devices, summary.phases) +
                             "Trained to step 21 (epoch 3) in 0:01:01, 1234 img/s, training loss 0.1235\n"
                             "2 of 21 steps were skipped: a loss or gradient was not finite\n";
  CHECK(summary_text(summary) == tables + "Result: Acc@1 97.500 Acc@5 99.250  loss 0.0951\nrun folder runs/x\\x01\n");
  summary.classes = 5;
  CHECK_THAT(summary_text(summary), Catch::Contains("\nResult: Acc@1 97.500  loss 0.0951\n"));
  summary.interrupted = true;
  CHECK(summary_text(summary, "--cpu\x02") ==
        tables + "run folder runs/x\\x01\nInterrupted; continue with --resume $'runs/x\\001' --cpu\\x02\n");
  summary.pipeline_stages = 2;
  CHECK_THAT(summary_text(summary), Catch::Contains("seconds     stage 0.0  stage 0.1\n"));
  CHECK(summary_text({.interrupted = true}, "--cpu 2") == "Interrupted\n");
}

TEST_CASE("an epoch's line has the tests of the weights and of their average, and drops the weights' first") {
  EpochReport epoch{.epoch = 12, .seconds = 8, .images_per_second = 100, .lr = 0.05};
  epoch.train = {.loss_sum = 3, .samples = 10};
  epoch.test = EvalReport{.stats = {.loss_sum = 4, .samples = 10, .top1 = 5, .top5 = 6}};
  epoch.average = EvalReport{.stats = {.loss_sum = 2, .samples = 10, .top1 = 7, .top5 = 8}};
  CHECK(epoch_line(epoch, 6) ==
        "Epoch 12: train loss 0.3  Test: Acc@1 50.000 Acc@5 60.000  loss 0.4  EMA Test: Acc@1 70.000 Acc@5 80.000  "
        "loss 0.2  8.0 s  100 img/s  lr 0.05");
  CHECK_THAT(epoch_line(epoch, 5), !Catch::Contains("Acc@5"));
  CHECK(epoch_line(epoch, 6, 60) == "Epoch 12: Test: Acc@1 50.000  EMA Test: Acc@1 70.000");
  CHECK(epoch_line(epoch, 6, 40) == "Epoch 12: EMA Test: Acc@1 70.000");
  CHECK(epoch_line(epoch, 6, 20) == "Epoch 12: EMA Test:");
}

// A data set of three classes with these labels and other files.
class Labelled final : public Dataset {
 public:
  Labelled(std::vector<std::int32_t> labels, std::vector<std::pair<std::string, std::int64_t>> others)
      : labels_(std::move(labels)), others_(std::move(others)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Shape image_shape() const override { return tiny_digits().train->image_shape(); }
  std::int64_t classes() const override { return 3; }
  std::vector<std::pair<std::string, std::int64_t>> passed_over() const override { return others_; }
  const Normalization& normalization() const override { return tiny_digits().train->normalization(); }
  std::int32_t label(std::int64_t index) const override { return labels_[static_cast<std::size_t>(index)]; }
  void read(std::int64_t, std::span<std::uint8_t>, Random*) const override {}

 private:
  std::vector<std::int32_t> labels_;
  std::vector<std::pair<std::string, std::int64_t>> others_;
};

TEST_CASE("the lines about a data set have the smallest and largest class and the files that are not images") {
  using Others = std::vector<std::pair<std::string, std::int64_t>>;
  const auto described = [](const Others& train, const Others& test) {
    return describe_data({std::make_shared<Labelled>(std::vector<std::int32_t>{0, 1, 1, 2, 2, 2}, train),
                          std::make_shared<Labelled>(std::vector<std::int32_t>{0}, test)});
  };
  const std::string counts = "data: 6 training and 1 test images\n3 classes of 1 to 3 training images";
  CHECK(described({}, {}) == counts);
  CHECK(described({{".b", 2}, {".a\x01", 2}}, {{".b", 1}}) ==
        counts + "\nignored files that are not .jpg, .jpeg, .png or .webp: 3 .b, 2 .a\\x01");
  CHECK(described({{".a", 1}, {".b", 2}, {".c", 3}, {".d", 4}, {".e", 5000}, {".f", 6}, {".g", 7}}, {}) ==
        counts +
            "\nignored files that are not .jpg, .jpeg, .png or .webp: 5,000 .e, 7 .g, 6 .f, 4 .d, 3 .c, 3 with other "
            "endings");
}

}  // namespace
