#include <memory>

#include "data/loader/batch_filler.h"
#include "data/memory_dataset.h"
#include "kernels/everywhere.h"
#include "kernels/step_state.h"

namespace {

using namespace dp;
using namespace dp::test;
using kernels::GatherImages;
using kernels::GatherInputs;

constexpr double kGatherTolerance = 2e-7;  // three roundings

struct Images {
  Shape shape;  // (C,H,W)
  Normalization normalization;
  std::vector<std::uint8_t> bytes;
};

Images random_images(std::int64_t count, const Shape& shape) {
  Random random(61, RandomUse::synthetic);
  Images images{shape, {}, std::vector<std::uint8_t>(static_cast<std::size_t>(count * shape.numel()))};
  for (std::uint8_t& byte : images.bytes) byte = static_cast<std::uint8_t>(random.next());
  for (std::int64_t c = 0; c < shape[0]; ++c) {
    images.normalization.mean.push_back(random.uniform(0.3f, 0.6f));
    images.normalization.std.push_back(random.uniform(0.2f, 0.3f));
  }
  return images;
}

struct Gathering {
  std::vector<std::int64_t> samples;
  Augmentation augmentation;
  bool augment = false;
  GatherInputs inputs;
};

HostTensor gathered(OpRig& rig, const Images& images, const Gathering& gathering, const kernels::Layout& layout) {
  const Shape& image = images.shape;
  const Shape shape{static_cast<std::int64_t>(gathering.samples.size()), image[0], image[1], image[2]};
  const auto op = rig.context().make_op(GatherImages{rig.desc(shape, layout)});
  std::vector<float> statistics = images.normalization.mean;
  statistics.insert(statistics.end(), images.normalization.std.begin(), images.normalization.std.end());
  const auto dataset = rig.upload_bytes(images.bytes.data(), images.bytes.size());
  const auto samples = rig.upload_bytes(gathering.samples.data(), gathering.samples.size() * sizeof(std::int64_t));
  const auto numbers = rig.upload_bytes(statistics.data(), statistics.size() * sizeof(float));
  GatherInputs inputs = gathering.inputs;
  inputs.images = static_cast<const std::uint8_t*>(dataset->data());
  inputs.statistics = static_cast<const float*>(numbers->data());
  inputs.padding = static_cast<std::int32_t>(gathering.augmentation.padding.value_or(0));
  inputs.flip = gathering.augmentation.flip == Flip::random;
  inputs.augment = gathering.augment;
  const auto on_device = rig.upload_bytes(&inputs, sizeof inputs);
  const DeviceTensor x = rig.poisoned(op->tensors()[0]);
  rig.run(*op, {samples->data(), on_device->data(), x.data()});
  return rig.download(x);
}

// The output of a loader.
std::vector<double> loaded(const Images& images, const Gathering& gathering) {
  const Shape& image = images.shape;
  const auto count = static_cast<std::int64_t>(images.bytes.size()) / image.numel();
  const MemoryDataset dataset(image, 1, images.normalization, images.bytes,
                              std::vector<std::int32_t>(static_cast<std::size_t>(count)), gathering.augmentation);
  const BatchFiller filler(dataset, gathering.augment, gathering.inputs.seed);
  const auto batch_size = static_cast<std::int64_t>(gathering.samples.size());
  Batch batch{Tensor({batch_size, image[0], image[1], image[2]}, DType::f32), Tensor({batch_size}, DType::i32),
              Tensor({batch_size}, DType::i64)};
  std::vector<std::uint8_t> scratch(filler.scratch_bytes());
  filler.fill(batch, gathering.samples, static_cast<std::int64_t>(gathering.inputs.epoch), scratch, {});
  const auto values = batch.images.span<float>();
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("images gathered on a device have the bits of the loader's images, augmented or not") {
  const std::vector<std::int64_t> samples{3, 0, 11, 3, 7, 1, 2, 11};
  for (const Shape& shape : {Shape{3, 32, 32}, Shape{1, 28, 28}, Shape{5, 7, 3}}) {
    const Images images = random_images(12, shape);
    for (const Augmentation& augmentation :
         {Augmentation{4, Flip::random}, Augmentation{1}, Augmentation{0, Flip::random}})
      for (const bool augment : {false, true}) {
        const Gathering gathering{samples, augmentation, augment, {.seed = 0x123456789abcdef0, .epoch = 3}};
        const std::vector<double> expected = loaded(images, gathering);
        everywhere([&](OpRig& rig) {
          const Shape batch{8, shape[0], shape[1], shape[2]};
          for (const kernels::Layout& layout : {kernels::Layout{}, rig.plain(batch), rig.preferred(batch)}) {
            INFO(to_string(shape) << " padding " << augmentation.padding.value_or(0) << " flip "
                                  << augmentation.flip.has_value() << " augment " << augment << " layout "
                                  << layout.name);
            const HostTensor x = gathered(rig, images, gathering, layout);
            if (rig.context().compute_type() == DType::f32)
              CHECK(x.values == expected);
            else
              CHECK(relative_error(x, {x.shape, expected}) <= kGatherTolerance);
          }
        });
      }
  }
}

TEST_CASE("gathered images depend on seed, epoch and sample, not on their place in the batch") {
  const Images images = random_images(6, {3, 8, 8});
  const Gathering first{{0, 1, 2, 3, 4, 5}, {4, Flip::random}, true, {.seed = 5, .epoch = 1}};
  Gathering other_epoch = first, other_seed = first, reversed = first;
  other_epoch.inputs.epoch = (std::uint64_t{1} << 40) + 1;
  other_seed.inputs.seed = (std::uint64_t{1} << 40) + 5;
  std::reverse(reversed.samples.begin(), reversed.samples.end());
  everywhere([&](OpRig& rig) {
    const std::vector<double> values = gathered(rig, images, first, {}).values;
    CHECK(gathered(rig, images, other_epoch, {}).values != values);
    CHECK(gathered(rig, images, other_seed, {}).values != values);
    std::vector<double> turned;
    const std::vector<double> backwards = gathered(rig, images, reversed, {}).values;
    for (long n = 5; n >= 0; --n)
      turned.insert(turned.end(), backwards.begin() + n * 192, backwards.begin() + (n + 1) * 192);
    CHECK(turned == values);
  });
}
