// The texts that describe a network: --print-plan, and the line about the pipeline.
#include <algorithm>
#include <stdexcept>

#include "engine/pipeline/pipelined.h"
#include "engine/step/memory/memory_room.h"
#include "kernels/device/backend.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

// 525,826 parameters: fc1.weight (512, 1024), fc1.bias (512), fc2.weight (2, 512) and fc2.bias (2).
Model two_layers() {
  ModelBuilder m("two_layers", Shape{1, 32, 32});
  const auto hidden = m.relu(m.linear("fc1", m.flatten(m.input()), {.out_features = 512}));
  return m.build(m.linear("fc2", hidden, {.out_features = 2}));
}

DataParallelOptions on_references(int replicas) {
  DataParallelOptions options = on_reference();
  options.devices.assign(static_cast<std::size_t>(replicas), options.devices.front());
  return options;
}

std::string layout_of(const Shape& shape) {
  return kernels::backend(DeviceKind::reference)
      .open({DeviceKind::reference, 0}, {})
      ->plain_layout(shape, DType::f64)
      .name;
}

// The text up to the first plan of a batch.
std::string head_of(const std::string& text) { return text.substr(0, text.find("plan for ")); }

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// "pipeline: 2 stages at fc2, 50.3 % balanced, ...": 50.3.
double balance_of(const std::string& line) {
  const std::size_t end = line.find(" % balanced");
  return std::stod(line.substr(line.rfind(' ', end - 1) + 1));
}

}  // namespace

TEST_CASE("descriptions: a plan begins with the parameters, their offsets, and the buckets in backward order") {
  DataParallelOptions options = on_reference();
  options.bucket_bytes = 8000;
  DataParallel net(two_layers(), options);
  const std::string text = net.describe_plan(16);
  CHECK(head_of(text) ==
        "model two_layers: 525826 parameters, 4.0 MiB a copy\n"
        "steps run eagerly: only GPUs have CUDA graphs\n"
        "  fc1.weight               (512, 1024)          at          0  " +
            layout_of(Shape{512, 1024}) +
            "\n"
            "  fc1.bias                 (512,)               at     524288  " +
            layout_of(Shape{512}) +
            "\n"
            "  fc2.weight               (2, 512)             at     524800  " +
            layout_of(Shape{2, 512}) +
            "\n"
            "  fc2.bias                 (2,)                 at     525824  " +
            layout_of(Shape{2}) +
            "\n"
            "buckets, in the order in which they become ready\n"
            "      524800 to     525840  0.01 MiB  from fc2.weight\n"
            "           0 to     524800  4.00 MiB  from fc1.weight\n");
  CHECK(count_of(text, "plan for ") == 2);
  CHECK(net.describe_steps() == "steps run eagerly: only GPUs have CUDA graphs");
}

TEST_CASE("descriptions: plans have the rows of the first shard of a micro-batch, and of an evaluation") {
  const auto check = [&](const DataParallelOptions& options, std::int64_t batch, int training, int evaluation) {
    const std::string text = DataParallel(small_convnet(), options).describe_plan(batch);
    INFO(text);
    CHECK(count_of(text, "plan for ") == 2 * static_cast<std::size_t>(options.pipeline.stages));
    CHECK(count_of(text, "plan for " + std::to_string(training) + " rows, training: ") ==
          static_cast<std::size_t>(options.pipeline.stages));
    CHECK(count_of(text, "plan for " + std::to_string(evaluation) + " rows, evaluation: ") ==
          static_cast<std::size_t>(options.pipeline.stages));
  };
  check(on_cpus(3), 16, 6, 6);
  DataParallelOptions options = on_cpus(2);
  options.grad_accum_steps = 3;
  check(options, 32, 6, 16);  // 11 rows in the first micro-batch
  options = on_cpus(2);
  options.logical_shards = 4;
  check(options, 20, 5, 5);
  check(pipelined(on_cpus(1), {1, 2, 3}, gpipe), 20, 7, 7);
}

TEST_CASE("descriptions: each stage of a pipeline has its parameters, plans and buckets") {
  DataParallelOptions options = pipelined(on_references(1), {1, 2, 3}, one_f_one_b);
  options.pipeline.cuts = {"fc2"};
  DataParallel net(two_layers(), options);
  const std::string text = net.describe_plan(6);
  CHECK(head_of(text) ==
        "model two_layers: 525826 parameters, 4.0 MiB a copy\n"
        "steps run eagerly: only GPUs have CUDA graphs\n" +
            net.describe_pipeline() +
            "\n"
            "stage 0\n"
            "  fc1.weight               (512, 1024)          at          0  " +
            layout_of(Shape{512, 1024}) +
            "\n"
            "  fc1.bias                 (512,)               at     524288  " +
            layout_of(Shape{512}) +
            "\n"
            "stage 1\n"
            "  fc2.weight               (2, 512)             at          0  " +
            layout_of(Shape{2, 512}) +
            "\n"
            "  fc2.bias                 (2,)                 at       1024  " +
            layout_of(Shape{2}) +
            "\n"
            "buckets, in the order in which they become ready\n"
            "           0 to       1040  0.01 MiB  from fc2.weight\n"
            "           0 to     524800  4.00 MiB  from fc1.weight\n"
            "stage 0\n");
  CHECK(count_of(text, "stage 0\nplan for 2 rows, training: ") == 1);
  CHECK(count_of(text, "stage 1\nplan for 2 rows, training: ") == 1);
}

TEST_CASE("descriptions: a plan states the type of mixed precision and how weights are gathered") {
  const Model model = two_layers();
  const auto head = [&](Amp amp, Reduce reduce, std::optional<double> ema) {
    DataParallelOptions options = on_references(2);
    options.amp = amp, options.reduce = reduce, options.ema_decay = ema;
    return head_of(DataParallel(model, options).describe_plan(4));
  };
  const std::string low = "mixed precision: activations and the weights that layers read in ";
  const std::string all = "each step gathers all weights in float32, for the moving average\n";
  const std::string some = "each step gathers weights as layers read them, biases and normalisation in float32\n";
  const std::string plain = head(Amp::off, Reduce::sharded, {});
  for (const std::string& line : {low, all, some}) CHECK(count_of(plain, line) == 0);
  const std::string master = head(Amp::bfloat16, Reduce::master, {});
  CHECK(count_of(master, low + "bfloat16, 1.0 MiB a copy\n") == 1);
  CHECK(count_of(master, "each step gathers") == 0);
  const std::string sharded = head(Amp::bfloat16, Reduce::sharded, {});
  CHECK(count_of(sharded, low + "bfloat16, 1.0 MiB a copy\n" + some) == 1);
  const std::string averaged = head(Amp::float16, Reduce::sharded, 0.9);
  CHECK(count_of(averaged, low + "float16, 1.0 MiB a copy, the loss scaled\n" + all) == 1);
}

TEST_CASE("descriptions: the balance of a pipeline is the mean time of its stages divided by that of the slowest") {
  const auto line_of = [](const std::vector<std::int64_t>& hidden, const std::vector<std::string>& cuts) {
    const Model model = models::mlp({.input = {1, 32, 32}, .hidden = hidden, .classes = 2});
    DataParallelOptions options = on_cpus(static_cast<int>(cuts.size()) + 1);
    options.pipeline = {.stages = static_cast<int>(cuts.size()) + 1, .cuts = cuts};
    return DataParallel(model, options).describe_pipeline();
  };
  // One layer has more than 90 % of the work.
  const std::vector<std::int64_t> heavy_first{2048, 2, 2, 2}, heavy_last{2, 2, 2048, 2048};
  CHECK_THAT(line_of(heavy_first, {"fc2"}), Catch::StartsWith("pipeline: 2 stages at fc2, "));
  CHECK_THAT(line_of(heavy_first, {"fc2", "fc4"}), Catch::StartsWith("pipeline: 3 stages at fc2 fc4, "));
  for (const auto& [hidden, cuts] :
       std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::string>>>{{heavy_first, {"fc2"}},
                                                                                   {heavy_first, {"fc5"}},
                                                                                   {heavy_last, {"fc3"}},
                                                                                   {heavy_first, {"fc2", "fc4"}},
                                                                                   {heavy_last, {"fc2", "fc3"}}}) {
    const double alone = 100 / (static_cast<double>(cuts.size()) + 1);
    const double balance = balance_of(line_of(hidden, cuts));
    INFO("cut at " << cuts.front() << ": " << balance);
    CHECK(balance >= alone - 0.1);
    CHECK(balance <= alone * 1.1);
  }
}

TEST_CASE("descriptions: the pipeline's line has the memory of the fullest device") {
  DataParallelOptions options = pipelined(on_cpus(1), {2, 2, 4}, gpipe);
  options.ema_decay = 0.9;  // on the first replica only
  options.pipeline.cuts = {"b"};
  DataParallel net(residual_net(), options);
  net.prepare({16}, {16});
  std::size_t fullest = 0;
  for (int device = 0; device < net.size(); ++device) fullest = std::max(fullest, net.memory_use(device).total());
  CHECK_THAT(net.describe_pipeline(), Catch::EndsWith("bubble 20 % (gpipe, 4 micro-batches), " +
                                                      engine::in_units(fullest) + " on the fullest device"));
  CHECK(net.size() == 4);
  CHECK(net.device_names() == std::vector<std::string>(4, "cpu"));
}

TEST_CASE("descriptions: devices, communicator and graphs of CPU replicas are named") {
  DataParallel one(small_convnet(), on_cpus(1)), two(small_convnet(), on_cpus(2));
  for (const DataParallel* const net : {&one, &two}) {
    CHECK(net->communicator() == "host");
    CHECK(net->communicator_choice().what == "host");
    CHECK(net->communicator_choice().reason == "all replicas are in one process and share its memory");
    CHECK(net->graphs_choice().what == "none");
    CHECK(net->graphs_choice().reason == "only GPUs have CUDA graphs");
    CHECK(net->model().name() == "small_convnet");
  }
  CHECK(one.size() == 1);
  CHECK(two.size() == 2);
  CHECK(one.device_names() == std::vector<std::string>{"cpu"});
  CHECK(two.device_names() == std::vector<std::string>{"cpu", "cpu"});
  CHECK_THROWS_AS(two.memory_use(2), std::out_of_range);
}
