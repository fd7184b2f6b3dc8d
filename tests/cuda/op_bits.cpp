// Prints a checksum of each op's output for fixed inputs, to compare the simulated GPU with a real one. Contains only
// ops with identical arithmetic on both: sums in a fixed order, single operations, and products accumulated by fmaf.
// Loss and batch normalisation are omitted: their math functions and contractions round differently.
#include <cstdio>

#include "cuda/comm/ranks.h"
#include "engine/base/crc32c.h"
#include "kernels/layer_calls.h"
#include "kernels/scalar_calls.h"
#include "support/catch.h"
#include "support/summands.h"

using namespace dp;
using namespace dp::test;
using kernels::StepInputs;
using kernels::StepResults;
using kernels::Window;

namespace {

void print(const char* op, const std::string& what, const std::vector<double>& values) {
  for (const double value : values) REQUIRE(value - value == 0);
  std::printf("bits %s %s %08x\n", op, what.c_str(), crc32c(std::as_bytes(std::span(values))));
}

bool no_gpu() {
  const DeviceProbe probe = probe_devices(DeviceKind::cuda);
  if (probe.count == 0) mark_skipped(probe.reason);
  return probe.count == 0;
}

std::string named(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += (i ? "x" : "") + std::to_string(shape[i]);
  return text;
}

constexpr Layouts kBoth[] = {Layouts::any, Layouts::plain};

}  // namespace

TEST_CASE("bits: update") {
  if (no_gpu()) return;
  Random random(71, RandomUse::synthetic);
  OpRig rig(DeviceKind::cuda);
  for (const std::int64_t count : {13, 4099})
    for (const bool nesterov : {false, true}) {
      const std::string what = std::to_string(count) + (nesterov ? "-nesterov" : "");
      StepResults results;
      results.clip = 0.37f;
      HostTensor w = random_tensor({count}, random), m = random_tensor({count}, random);
      const HostTensor g = random_tensor({count}, random);
      sgd_update(rig, w, g, &m, {.lr = 0.3f, .momentum = 0.9f, .nesterov = nesterov, .weight_decay = 5e-2f}, results);
      print("sgd_update", what + "-weights", w.values);
      print("sgd_update", what + "-momenta", m.values);
      const std::vector<double> partials = grad_norm_partials(rig, g);
      print("grad_norm_partials", what, partials);
      const StepResults finished = grad_norm_finish(rig, partials, {.max_norm = 0.5f});
      print("grad_norm_finish", what, {finished.grad_norm, finished.clip});
      print("moving_average", what, moving_average(rig, g, w, 0.999).values);
      print("accumulate", what, accumulate(rig, g, w).values);
    }
}

TEST_CASE("bits: pools") {
  if (no_gpu()) return;
  Random random(72, RandomUse::synthetic);
  OpRig rig(DeviceKind::cuda);
  const std::vector<std::int64_t> samples{5, 77, (std::int64_t{1} << 40) + 3};
  const StepInputs inputs{.seed = 0x123456789abcdef0, .step = 7};
  for (const Window& window : {Window{2, 2, 0}, Window{3, 2, 1}, Window{3, 1, 1}})
    for (const std::int64_t channels : {5, 32})
      for (const Layouts layouts : kBoth) {
        const HostTensor x = random_tensor({3, channels, 9, 7}, random);
        const HostTensor dy = random_tensor(window_output(x.shape, channels, window), random);
        const std::string what = std::to_string(channels) + "-" + std::to_string(window.kernel.h) + "-" +
                                 std::to_string(window.stride.h) + "-" + to_string(layouts);
        // Drops half of the elements: the scale 2 is exact, with and without contraction.
        const LayerResult most =
            max_pool2d(rig, x, dy, {.window = window, .relu = true, .dropout = kernels::DropoutSpec{0.5f, 3}}, samples,
                       inputs, layouts);
        print("max_pool2d_forward", what, most.y.values);
        print("max_pool2d_backward", what, most.dx.values);
        const LayerResult mean = avg_pool2d(rig, x, dy, &window, layouts);
        print("avg_pool2d_forward", what, mean.y.values);
        print("avg_pool2d_backward", what, mean.dx.values);
      }
}

TEST_CASE("bits: elementwise") {
  if (no_gpu()) return;
  Random random(73, RandomUse::synthetic);
  OpRig rig(DeviceKind::cuda);
  for (const Shape& shape : {Shape{3, 5, 7, 3}, Shape{2, 32, 8, 8}})
    for (const bool preferred : {false, true}) {
      const kernels::Layout layout = preferred ? rig.preferred(shape) : rig.plain(shape);
      const HostTensor a = random_tensor(shape, random), b = random_tensor(shape, random);
      const std::string what = named(shape) + (preferred ? "-preferred" : "-plain");
      const HostTensor y = relu_forward(rig, a, layout, false);
      print("relu_forward", what, y.values);
      print("relu_backward", what, relu_backward(rig, b, y, layout, false).values);
      print("add", what, add(rig, a, b, true, layout, false).values);
      const std::vector<std::int64_t> samples{17, 4, 9};
      print("dropout", what,
            dropout(rig, a, {0.3f, 5}, {samples.begin(), samples.begin() + shape[0]}, {.seed = 99, .step = 12}, layout,
                    false)
                .values);
      print("reorder", what, rig.download_raw(rig.upload(a, rig.desc(shape, layout))).values);
    }
}

TEST_CASE("bits: gather") {
  if (no_gpu()) return;
  Random random(74, RandomUse::synthetic);
  OpRig rig(DeviceKind::cuda);
  std::vector<std::uint8_t> bytes(12 * 3 * 32 * 32);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  const std::vector<std::int64_t> samples{3, 0, 11, 3};
  const float statistics[] = {0.49f, 0.48f, 0.45f, 0.25f, 0.24f, 0.26f};
  const auto op = rig.context().make_op(kernels::GatherImages{rig.desc({4, 3, 32, 32})});
  const auto dataset = rig.upload_bytes(bytes.data(), bytes.size());
  const auto rows = rig.upload_bytes(samples.data(), samples.size() * sizeof(std::int64_t));
  const auto numbers = rig.upload_bytes(statistics, sizeof statistics);
  const kernels::GatherInputs how{.images = static_cast<const std::uint8_t*>(dataset->data()),
                                  .statistics = static_cast<const float*>(numbers->data()),
                                  .seed = 0x123456789abcdef0,
                                  .epoch = 3,
                                  .padding = 4,
                                  .flip = 1,
                                  .augment = 1};
  const auto inputs = rig.upload_bytes(&how, sizeof how);
  const DeviceTensor x = rig.poisoned(op->tensors()[0]);
  rig.run(*op, {rows->data(), inputs->data(), x.data()});
  print("gather_images", "4x3x32x32", rig.download(x).values);
}

TEST_CASE("bits: products") {
  if (no_gpu()) return;
  Random random(75, RandomUse::synthetic);
  OpRig rig(DeviceKind::cuda);
  struct Conv {
    Shape x;
    std::int64_t out;
    Window window;
  };
  const auto show = [](const std::string& op, const std::string& what, const LayerResult& result) {
    print((op + "_forward").c_str(), what, result.y.values);
    print((op + "_backward_data").c_str(), what, result.dx.values);
    print((op + "_backward_weights").c_str(), what, result.dw.values);
    print((op + "_backward_bias").c_str(), what, result.db.values);
  };
  for (const Conv& c : {Conv{{2, 3, 9, 9}, 16, {3, 1, 1}}, Conv{{2, 32, 8, 8}, 64, {3, 2, 1}},
                        Conv{{2, 16, 6, 6}, 32, {1, 2, 0}}, Conv{{1, 5, 7, 6}, 13, {3, 1, 0}}})
    for (const Layouts layouts : kBoth) {
      const HostTensor x = random_tensor(c.x, random), b = random_tensor({c.out}, random);
      const HostTensor w = random_tensor({c.out, c.x[1], c.window.kernel.h, c.window.kernel.h}, random);
      const HostTensor dy = random_tensor(window_output(c.x, c.out, c.window), random);
      show("conv2d", named(w.shape) + "-" + to_string(layouts), conv2d(rig, x, w, &b, dy, c.window, true, layouts));
    }
  const HostTensor x = random_tensor({7, 300}, random), w = random_tensor({33, 300}, random);
  const HostTensor b = random_tensor({33}, random), dy = random_tensor({7, 33}, random);
  show("linear", "7x300x33", linear(rig, x, w, &b, dy, true, Layouts::any));
}

TEST_CASE("bits: p2p") {
  if (no_gpu()) return;
  constexpr std::int64_t kCount = 5003;
  for (const int size : {2, 4}) {
    Ranks ranks(std::vector<int>(static_cast<std::size_t>(size), 0));
    std::vector<std::vector<double>> sums(static_cast<std::size_t>(size));
    ranks.run([&](int rank, kernels::Context& context, kernels::Communicator& comm) {
      const auto stream = context.make_stream();
      comm.set_summands(1, kCount);
      OnDevice<float> memory(context, *stream, summand_values<float>(rank, kCount));
      comm.all_reduce(memory.data(), kCount, DType::f32, *stream);
      const std::vector<float> sum = memory.content();
      sums[static_cast<std::size_t>(rank)] = {sum.begin(), sum.end()};
    });
    for (int rank = 0; rank < size; ++rank)
      print("all_reduce", std::to_string(size) + "-rank" + std::to_string(rank), sums[static_cast<std::size_t>(rank)]);
  }
}
