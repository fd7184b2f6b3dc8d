// What must work between a program that hides its own symbols and a shared libdp: errors in both directions, from
// threads of the library too; classes of the program that the library calls; the registries.
#include <dp/dp.h>

#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace {

bool failed = false;

void expect(bool condition, const char* what) {
  std::printf("%-4s %s\n", condition ? "ok" : "FAIL", what);
  if (!condition) failed = true;
}

struct OwnError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws E when it is read.
template <typename E>
class Broken final : public dp::Dataset {
 public:
  explicit Broken(const E& error) : error_(error) {}
  std::int64_t size() const override { return 64; }
  dp::Shape image_shape() const override { return {1, 28, 28}; }
  std::int64_t classes() const override { return 10; }
  const dp::Normalization& normalization() const override { return normalization_; }
  std::int32_t label(std::int64_t) const override { return 0; }
  void read(std::int64_t, std::span<std::uint8_t>, dp::Random*) const override { throw error_; }

 private:
  E error_;
  dp::Normalization normalization_{{0}, {1}};
};

template <typename E>
void train(const E& error) {
  const auto data = std::make_shared<Broken<E>>(error);
  dp::TrainerOptions options{.epochs = 1, .batch_size = 16};
  options.parallel.devices = dp::cpus(2);
  dp::Trainer(dp::models::mnist_convnet(), {data, data}, options).run();
}

}  // namespace

int main() {
  try {
    dp::parse_device("nonsense");
    expect(false, "the library throws");
  } catch (const dp::Error& error) {
    expect(error.code() == dp::ErrorCode::usage, "the library's error is caught");
  }
  try {
    train(dp::Error(dp::ErrorCode::data, "thrown by the program"));
    expect(false, "a data set throws");
  } catch (const dp::Error& error) {
    expect(error.code() == dp::ErrorCode::data &&
               std::string(error.what()).find("thrown by the program") != std::string::npos,
           "an error of the program comes back through the loader's threads");
  }
  try {
    train(OwnError("own"));
    expect(false, "a data set throws");
  } catch (const OwnError&) {
    expect(true, "so does an exception of the program's own type");
  }
  dp::models::Entry entry = dp::models::find("mnist_convnet");
  entry.name = "added";
  dp::models::add(entry);
  expect(dp::models::find("added").name == "added", "a network is added to the registry");
  expect(!dp::parallel_option_table().rows().empty(), "the tables of options are visible");
  dp::DataParallel net(dp::models::mlp(), {.devices = dp::cpus(2)});
  net.set_weights(net.weights());
  expect(!net.weights().empty(), "weights pass in both directions");
  return failed ? 1 : 0;
}
