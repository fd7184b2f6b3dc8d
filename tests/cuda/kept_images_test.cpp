// Image sets that simulated GPUs keep.
#include "support/kept_images.h"

#include "cuda/narrow_nets.h"
#include "cuda/simulated_gpus.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("simulated GPUs: batches made of kept images give the same bits") {
  const Model model = narrow_convnet();
  for (const int gpus : {1, 2}) {
    SimulatedGpus machine(gpus);
    check_kept_images(model, on_gpus(2 * gpus - 1, gpus));
  }
}

TEST_CASE("simulated GPUs: images are kept where nobody says otherwise, and count as memory") {
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
