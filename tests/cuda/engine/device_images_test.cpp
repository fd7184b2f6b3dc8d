// Device-resident image sets on simulated GPUs.
#include "support/device_images.h"

#include "cuda/engine/graph_runs.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::test;

namespace {

// Two sets that share only the shape of their images.
std::vector<std::shared_ptr<const ImageSet>> two_sets(const Model& model) {
  const RandomImages images(model.input(), model.output()[0], 20);
  const auto first = read_images(images);
  auto second = std::make_shared<ImageSet>(*first);
  second->images = first->images.clone();
  for (std::uint8_t& byte : second->images.span<std::uint8_t>()) byte = static_cast<std::uint8_t>(255 - byte / 2);
  for (float& mean : second->normalization.mean) mean = 0.6f;
  second->augmentation = {.padding = 4, .flip = Flip::none};
  return {first, second};
}

// Varies the set, the epoch, the seed and the augmentation from step to step.
Batch resident_batch(const Model& model, const std::vector<std::shared_ptr<const ImageSet>>& sets, std::uint64_t i) {
  Batch batch = random_batch(model, 8, i);
  batch.images = {};
  for (std::int64_t& sample : batch.samples.span<std::int64_t>()) sample = (sample + static_cast<int>(i)) % 20;
  batch.resident = {.set = sets[i % 2], .augment = i % 3 != 0, .seed = 7 + i / 4, .epoch = i / 2};
  return batch;
}

int nodes_of(const std::string& steps) {
  const std::size_t end = steps.find(" nodes");
  REQUIRE(end != std::string::npos);
  return std::stoi(steps.substr(steps.rfind(' ', end - 1) + 1));
}

}  // namespace

TEST_CASE("simulated GPUs: the graph of a step makes the batch, also of other data sets and epochs") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2})
    for (const int shards : {0, 4}) {
      SimulatedGpus machine(gpus);
      simt::simulation().protect_memory = false;  // faster
      INFO(gpus << " GPUs, logical shards " << shards);
      DataParallelOptions options = on_gpus(gpus, gpus);
      options.logical_shards = shards;
      const auto sets = two_sets(model);
      const auto train = [&](bool graphs, bool keeps) {
        options.graphs = graphs ? Graphs::always : Graphs::never;
        auto net = std::make_unique<DataParallel>(model, options);
        for (std::uint64_t i = 0; i < 12; ++i)
          net->train_step(keeps ? resident_batch(model, sets, i) : random_batch(model, 8, i),
                          Sgd{.lr = 0.05f, .momentum = 0.9f});
        return net;
      };
      const auto eager = train(false, true), graphs = train(true, true), uploaded = train(true, false);
      CHECK(bit_equal(graphs->weights(), eager->weights()));
      CHECK(graphs->take_stats().loss_sum == eager->take_stats().loss_sum);
      CHECK(nodes_of(graphs->describe_steps()) ==
            nodes_of(uploaded->describe_steps()) + std::max(shards, gpus));  // one for each shard
      CHECK_THAT(graphs->describe_steps(), !Catch::Contains(","));           // one kind of step
      const auto batch_of = [&](std::uint64_t i) { return resident_batch(model, sets, i); };
      const auto graph_launches = launches_of_steps(model, options, true, batch_of);
      CHECK(graph_launches == launches_of_steps(model, options, false, batch_of));
      int made = 0;
      for (const auto& [stream, launches] : graph_launches)
        for (const std::string& launch : launches) made += launch.find("gather_images") != std::string::npos;
      CHECK(made == 2 * std::max(shards, gpus));
    }
}

TEST_CASE("simulated GPUs: batches of a device-resident data set give the same bits") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2}) {
    SimulatedGpus machine(gpus);
    check_resident_images(model, on_gpus(2 * gpus - 1, gpus));
  }
}

TEST_CASE("simulated GPUs: images are device-resident by default and count as memory") {
  SimulatedGpus machine(2);
  const Model model = narrow_convnet();
  const DatasetPair data{std::make_shared<RandomImages>(model.input(), model.output()[0], 20),
                         std::make_shared<RandomImages>(model.input(), model.output()[0], 10)};
  std::vector<std::string> digests;
  std::vector<std::size_t> bytes;
  for (const ImagesOn place : {ImagesOn::automatic, ImagesOn::host}) {
    TrainerOptions options;
    options.parallel = on_gpus(2, 2);
    options.epochs = 1;
    options.batch_size = 10;
    options.images_on = place;
    Trainer trainer(model, data, options);
    digests.push_back(trainer.run().weights_sha256);
    bytes.push_back(trainer.net().memory_use(1).other);
  }
  CHECK(digests[0] == digests[1]);
  CHECK(bytes[0] >= bytes[1] + 30 * static_cast<std::size_t>(model.input().numel()));
}
