// Device-resident data sets on CPU devices.
#include "support/device_images.h"

#include <fstream>

#include "support/temporary_folder.h"

using namespace dp;
using namespace dp::test;

TEST_CASE("batches made from a device-resident data set give the same bits") {
  const Model model = small_convnet(/*dropout=*/true);
  for (const int replicas : {1, 2, 3}) check_resident_images(model, on_cpus(replicas));
  DataParallelOptions options = on_cpus(2);
  options.grad_accum_steps = 3;
  check_resident_images(model, options);
  options.grad_accum_steps = 1;
  options.loss = LossAt::gathered;
  check_resident_images(model, options);
  options.loss = LossAt::local;
  options.logical_shards = 4;
  check_resident_images(model, options);
}

TEST_CASE("a batch of a device-resident data set has labels, samples and the key of its epoch, but no pixels") {
  const auto data = std::make_shared<RandomImages>(Shape{1, 5, 4}, 3, 7);
  const auto set = read_images(*data);
  REQUIRE(set->images.shape() == Shape{7, 1, 5, 4});
  for (std::int64_t i = 0; i < 7; ++i) {
    const auto image = data->image(i);
    CHECK(std::equal(image.begin(), image.end(), set->images.data<std::uint8_t>() + 20 * i));
  }
  Loader loader(data, {.batch_size = 3, .augment = true, .seed = 6, .resident = set});
  std::int64_t samples = 0;
  for (const Batch& batch : loader.epoch(4)) {
    CHECK(batch.images.empty());
    CHECK(batch.resident.set == set);
    CHECK(batch.resident.augment);
    CHECK(batch.resident.seed == 6);
    CHECK(batch.resident.epoch == 4);
    for (std::int64_t i = 0; i < batch.size(); ++i, ++samples)
      CHECK(batch.labels.data<std::int32_t>()[i] == data->label(batch.samples.data<std::int64_t>()[i]));
  }
  CHECK(samples == 7);
}

TEST_CASE("data sets that would give other images are not made device-resident") {
  class Varying final : public Dataset {
   public:
    std::int64_t size() const override { return 2; }
    Shape image_shape() const override { return {1, 2, 2}; }
    std::int64_t classes() const override { return 2; }
    const Normalization& normalization() const override { return normalization_; }
    std::int32_t label(std::int64_t) const override { return 0; }
    void read(std::int64_t, std::span<std::uint8_t>, Random*) const override {}

   private:
    Normalization normalization_{{0}, {1}};
  };
  CHECK_THROWS_WITH(read_images(Varying()), Catch::Contains("changes its images"));
  const auto data = std::make_shared<RandomImages>(Shape{1, 5, 4}, 3, 7);
  const auto other = read_images(RandomImages(Shape{1, 5, 4}, 3, 8));
  CHECK_THROWS_WITH(Loader(data, {.batch_size = 3, .resident = other}),
                    Catch::Contains("read_images() of that dataset"));
  DataParallel net(small_convnet(), on_cpus(1));
  Batch wrong;
  wrong.samples = Tensor(Shape{1}, DType::i64);
  wrong.labels = Tensor(Shape{1}, DType::i32);
  wrong.resident.set = other;
  CHECK_THROWS_WITH(net.train_step(wrong, Sgd{}), Catch::Contains("do not fit model"));
  const Model model = small_convnet();
  DataParallel reference(model, on_reference());
  Batch batch;
  batch.samples = Tensor(Shape{2}, DType::i64);
  batch.labels = Tensor(Shape{2}, DType::i32);
  batch.resident.set = read_images(RandomImages(model.input(), 7, 4));
  CHECK_THROWS_WITH(reference.train_step(batch, Sgd{}), Catch::Contains("does not support device-resident images"));
  batch.samples.data<std::int64_t>()[1] = 4;
  CHECK_THROWS_WITH(net.train_step(batch, Sgd{}),
                    Catch::Contains("sample index 4 is out of range; the images have indices 0 to 3"));
  batch.samples.data<std::int64_t>()[1] = 3;
  CHECK_THROWS_WITH(net.prepare({1}, {}, {.set = other}, {}), Catch::Contains("do not fit model"));
  CHECK_THROWS_WITH(net.prepare({}, {1}, {}, {.set = other}), Catch::Contains("do not fit model"));
  for (const bool padded : {true, false}) {
    auto wrong_set = std::make_shared<ImageSet>(*batch.resident.set);
    if (padded)
      wrong_set->augmentation.padding = -1;
    else
      wrong_set->normalization.std.back() = 0;
    Batch of_it = batch;
    of_it.resident.set = wrong_set;
    CHECK_THROWS_WITH(DataParallel(model, on_cpus(1)).train_step(of_it, Sgd{}),
                      Catch::Contains("padded by 0 or more pixels"));
  }
  auto erased = std::make_shared<ImageSet>(*batch.resident.set);
  erased->augmentation.random_erase = 0.5f;
  Batch of_erased = batch;
  of_erased.resident.set = erased;
  of_erased.resident.augment = true;
  CHECK_THROWS_WITH(DataParallel(model, on_cpus(1)).train_step(of_erased, Sgd{}),
                    Catch::Contains("--random-erase does not work on device-resident images"));
  auto floats = std::make_shared<ImageSet>(*batch.resident.set);
  floats->images = Tensor(floats->images.shape());
  batch.resident.set = floats;
  CHECK_THROWS_WITH(net.train_step(batch, Sgd{}), Catch::Contains("bytes"));
}

TEST_CASE("training from a device-resident data set reaches the same weights, and the record states it") {
  const DatasetPair data{std::make_shared<RandomImages>(Shape{2, 12, 12}, 7, 40),
                         std::make_shared<RandomImages>(Shape{2, 12, 12}, 7, 10)};
  const TemporaryFolder folder;
  std::vector<std::string> digests;
  for (const ImagesOn place : {ImagesOn::automatic, ImagesOn::host, ImagesOn::device}) {
    TrainerOptions options;
    options.parallel = on_cpus(2);
    options.epochs = 2;
    options.batch_size = 16;
    options.images_on = place;
    options.output_dir = folder / std::to_string(static_cast<int>(place));
    digests.push_back(Trainer(small_convnet(), data, options).run().weights_sha256);
    std::ifstream file(options.output_dir + "/config.toml");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    CHECK(text.find(place == ImagesOn::device ? "images-on = \"device\"" : "images-on = \"host\"") !=
          std::string::npos);
  }
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] == digests[2]);

  TrainerOptions options;
  options.parallel = on_cpus(1);
  options.augmentation.flip = Flip::alternating;
  options.images_on = ImagesOn::device;
  CHECK_THROWS_WITH(Trainer(small_convnet(), data, options),
                    Catch::Contains("--flip alternating does not work with a device-resident data set; use "
                                    "--images-on host"));
}
