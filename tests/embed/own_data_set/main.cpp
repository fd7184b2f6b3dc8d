#include <dp/dataset.h>
#include <dp/train_main.h>

// Stripes across or down, in random colours: 2 classes of 16x16 images, drawn when they are read.
class Stripes final : public dp::Dataset {
 public:
  explicit Stripes(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {}
  std::int64_t size() const override { return size_; }
  dp::Shape image_shape() const override { return {3, 16, 16}; }
  std::int64_t classes() const override { return 2; }
  std::vector<std::string> class_names() const override { return {"across", "down"}; }
  const dp::Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t index) const override { return static_cast<std::int32_t>(index % 2); }
  bool varies() const override { return false; }  // read() draws nothing from its `random`
  void read(std::int64_t index, std::span<std::uint8_t> out, dp::Random*) const override {
    dp::Random random(seed_, dp::RandomUse::synthetic, static_cast<std::uint64_t>(index));
    const std::uint32_t period = 2 + random.below(4), begin = random.below(period);
    for (std::size_t plane = 0; plane < 3; ++plane) {
      const std::uint32_t dark = random.below(128), bright = 128 + random.below(128);
      for (std::size_t i = 0; i < 256; ++i) {
        const std::size_t place = label(index) == 0 ? i / 16 : i % 16;
        out[256 * plane + i] = static_cast<std::uint8_t>((place + begin) / period % 2 == 0 ? dark : bright);
      }
    }
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
  dp::Normalization normalization_{{0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}};
};

int main(int argc, char** argv) {
  const auto open = [](const std::string& /*folder*/, std::uint64_t seed) {
    return dp::DatasetPair{std::make_shared<Stripes>(2000, seed), std::make_shared<Stripes>(500, seed + 1)};
  };
  dp::datasets::add({"stripes", "drawn", {3, 16, 16}, /*classes=*/2, /*epochs=*/1, "mlp", open});
  return dp::train_main(argc, argv);
}
