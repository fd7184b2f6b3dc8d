#include "dp/shape.h"

#include <cmath>
#include <tuple>

#include "dp/device.h"
#include "dp/error.h"
#include "dp/model.h"
#include "dp/models.h"
#include "dp/tensor.h"
#include "support/catch.h"

TEST_CASE("a shape counts its elements, prints itself and rejects invalid sizes") {
  CHECK(dp::Shape{2, 3, 4}.numel() == 24);
  CHECK(dp::Shape{}.numel() == 1);
  CHECK(to_string(dp::Shape{64, 1}) == "(64, 1)");
  CHECK_THROWS_AS((dp::Shape{-1}), dp::Error);
  CHECK_THROWS_AS((dp::Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}), dp::Error);
}

TEST_CASE("GPU lists are parsed, and invalid ones are rejected with the valid ids") {
  CHECK(dp::parse_gpu_list("0,2", 4) == std::vector<int>{0, 2});
  CHECK(dp::parse_gpu_list("1-3", 4) == std::vector<int>{1, 2, 3});
  CHECK(dp::parse_gpu_list("all", 2) == std::vector<int>{0, 1});
  for (const char* bad : {"", "x", "0,", ",0", "-1", "0-", "3-1", "4", "0,0", "0-2,1", "1e0", " 0", "99999999999"})
    CHECK_THROWS_AS(dp::parse_gpu_list(bad, 4), dp::Error);
  try {
    dp::parse_gpu_list("7", 4);
  } catch (const dp::Error& error) {
    CHECK(std::string(error.what()).find("0-3") != std::string::npos);
    CHECK(error.code() == dp::ErrorCode::usage);
  }
}

TEST_CASE("devices are parsed, and other texts are rejected") {
  CHECK(dp::parse_device("cpu").kind == dp::DeviceKind::cpu);
  CHECK(dp::parse_device("cuda").index == 0);
  CHECK(dp::parse_device("cuda:3").index == 3);
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1,2"})
    CHECK_THROWS_WITH(dp::parse_device(bad), "'" + std::string(bad) + "' is not a device; use cpu or cuda:<id>");
}

TEST_CASE("mnist_convnet has PyTorch's parameters") {
  const dp::Model model = dp::models::mnist_convnet();
  CHECK(model.parameter_count() == 1199882);
  CHECK(model.parameters().front().name == "conv1.weight");
  CHECK(model.output() == dp::Shape{10});
  CHECK(model.parameters()[4].shape == dp::Shape{128, 9216});
}

TEST_CASE("a model builder rejects layers whose shapes do not fit, by name") {
  dp::ModelBuilder m("bad", dp::Shape{1, 4, 4});
  CHECK_THROWS_WITH(m.conv2d("big", m.input(), {.out_channels = 2, .kernel = 9}), Catch::Contains("big"));
  CHECK_THROWS_WITH(m.linear("fc", m.input(), {.out_features = 2}), Catch::Contains("flatten"));
}

TEST_CASE("a pool's default stride is its kernel size, as in PyTorch") {
  for (const auto& [kernel, stride, size] : std::vector<std::tuple<int, int, std::int64_t>>{
           {3, 0, 4}, {2, 0, 6}, {4, 0, 3}, {3, 1, 10}, {3, 2, 5}, {2, 2, 6}}) {
    INFO("kernel " << kernel << ", stride " << stride);
    dp::MaxPool2d largest{.kernel = kernel};
    dp::AvgPool2d mean{.kernel = kernel};
    if (stride != 0) largest.stride = mean.stride = stride;
    dp::ModelBuilder m("pools", dp::Shape{1, 12, 12});
    m.max_pool2d(m.input(), largest), m.avg_pool2d(m.input(), mean);
    const dp::Model model = m.build({2});
    for (const dp::Layer& layer : {model.layers()[1], model.layers()[2]})
      CHECK(layer.output == dp::Shape{1, size, size});
    // The model stores the resolved stride.
    CHECK(std::get<dp::MaxPool2d>(model.layers()[1].kind).stride == (stride == 0 ? kernel : stride));
    CHECK(std::get<dp::AvgPool2d>(model.layers()[2].kind).stride == (stride == 0 ? kernel : stride));
  }
  dp::ModelBuilder m("plain", dp::Shape{1, 12, 12});
  m.max_pool2d(m.input());
  CHECK(m.build({1}).output() == dp::Shape{1, 6, 6});
  dp::ModelBuilder bad("bad", dp::Shape{1, 12, 12});
  CHECK_THROWS_WITH(bad.max_pool2d(bad.input(), {.stride = 0}), Catch::Contains("stride must be positive"));
}

TEST_CASE("pools in ceil mode and adaptive pools have PyTorch's sizes") {
  struct {
    dp::MaxPool2d pool;
    std::int64_t size, pooled;
  } const cases[] = {
      {{.kernel = 3, .stride = 2, .ceil_mode = true}, 7, 3},  // fits exactly
      {{.kernel = 3, .stride = 2, .ceil_mode = true}, 8, 4},
      {{.kernel = 2, .stride = 2, .ceil_mode = true}, 7, 4},
      {{.kernel = 3, .stride = 2, .ceil_mode = true}, 2, 1},                // larger than the image
      {{.kernel = 2, .stride = 3, .padding = 1, .ceil_mode = true}, 5, 2},  // a third would begin behind the image
      {{.kernel = 2, .stride = 3, .ceil_mode = true}, 6, 2},
      {{.kernel = 3, .stride = 2, .dilation = 2, .ceil_mode = true}, 8, 3},
      {{.kernel = 3, .stride = 2, .dilation = 2}, 8, 2},
  };
  for (const auto& [pool, size, pooled] : cases) {
    INFO("kernel " << pool.kernel.h << ", stride " << pool.stride->h << ", size " << size);
    dp::ModelBuilder m("pool", dp::Shape{1, size, size});
    m.max_pool2d(m.input(), pool);
    CHECK(m.build({1}).output() == dp::Shape{1, pooled, pooled});
  }
  dp::ModelBuilder m("pools", dp::Shape{2, 12, 9});
  const auto x =
      m.max_pool2d(m.input(), {.kernel = {2, 3}, .stride = dp::HW{2, 1}, .padding = {0, 1}, .dilation = {3, 1}});
  m.adaptive_avg_pool2d(x, {4, 7});
  const dp::Model model = m.build({2});
  CHECK(model.layers()[1].output == dp::Shape{2, 5, 9});
  CHECK(model.output() == dp::Shape{2, 4, 7});
}

TEST_CASE("upsampling, padding and transposed convolutions have PyTorch's sizes") {
  const auto size = [](const auto& append) {
    dp::ModelBuilder m("sizes", dp::Shape{4, 5, 7});
    return m.build(append(m)).output();
  };
  CHECK(size([](auto& m) { return m.upsample(m.input(), {.scale_factor = 1.5}); }) == dp::Shape{4, 7, 10});
  CHECK(size([](auto& m) { return m.upsample(m.input(), {.size = dp::HW{3, 9}}); }) == dp::Shape{4, 3, 9});
  CHECK(size([](auto& m) { return m.zero_pad2d(m.input(), {1, 2, 3, -4}); }) == dp::Shape{4, 4, 10});
  CHECK(size([](auto& m) {
          return m.conv_transpose2d("up", m.input(),
                                    {.out_channels = 6,
                                     .kernel = {3, 2},
                                     .stride = {2, 3},
                                     .padding = {1, 0},
                                     .output_padding = {1, 2},
                                     .groups = 2,
                                     .dilation = {2, 1}});
        }) == dp::Shape{6, 12, 22});
  dp::ModelBuilder m("parameters", dp::Shape{4, 5, 7});
  const auto up = m.conv_transpose2d("up", m.input(), {.out_channels = 6, .kernel = {3, 2}, .groups = 2});
  const dp::Model model = m.build(m.subtract(up, m.prelu("act", m.softmax(up), {.num_parameters = 6})));
  CHECK(model.parameters()[0].shape == dp::Shape{4, 3, 3, 2});
  CHECK(model.parameters()[0].init.value == Approx(1 / std::sqrt(18.0)));
  CHECK(model.parameters()[1].shape == dp::Shape{6});
  CHECK(model.parameters()[2].name == "act.weight");
  CHECK(model.parameters()[2].init.value == 0.25f);
  CHECK(std::get<dp::Times>(std::get<dp::Activation>(model.layers()[4].kind).function).factor == -1);
}

TEST_CASE("a model builder rejects upsampling, padding, transposed convolutions and PReLU that do not fit") {
  dp::ModelBuilder m("bad", dp::Shape{4, 5, 7});
  const auto x = m.input();
  using Up = dp::Upsample;
  for (const Up& bad : {Up{}, Up{.size = dp::HW{3, 3}, .scale_factor = 2}, Up{.size = dp::HW{0, 3}},
                        Up{.scale_factor = 0.1}, Up{.scale_factor = -1}, Up{.scale_factor = NAN},
                        Up{.scale_factor = 1e9}, Up{.scale_factor = 2, .align_corners = true}})
    CHECK_THROWS_WITH(m.upsample(x, bad), Catch::Contains("upsample"));
  CHECK_THROWS_WITH(m.zero_pad2d(x, {.top = -2, .bottom = -3}), Catch::Contains("nothing is left"));
  using Transposed = dp::ConvTranspose2d;
  for (const Transposed& bad :
       {Transposed{}, Transposed{.out_channels = 4, .kernel = 0}, Transposed{.out_channels = 4, .stride = 0},
        Transposed{.out_channels = 4, .padding = -1}, Transposed{.out_channels = 4, .dilation = 0},
        Transposed{.out_channels = 4, .output_padding = 1}, Transposed{.out_channels = 4, .output_padding = -1},
        Transposed{.out_channels = 4, .padding = 4}, Transposed{.out_channels = 4, .groups = 3},
        Transposed{.out_channels = 3, .groups = 2}})
    CHECK_THROWS_WITH(m.conv_transpose2d("up", x, bad), Catch::Contains("'up'"));
  CHECK_THROWS_WITH(m.prelu("act", x, {.num_parameters = 3}), Catch::Contains("must be 1 or 4"));
  CHECK_THROWS_WITH(m.subtract(x, x), Catch::Contains("subtract"));
  CHECK_THROWS_WITH(m.subtract(x, m.flatten(x)), Catch::Contains("one shape"));
  const auto row = m.flatten(x);
  CHECK_THROWS_WITH(m.upsample(row, {.scale_factor = 2}), Catch::Contains("(C, H, W)"));
  CHECK_THROWS_WITH(m.zero_pad2d(row, {1, 1, 1, 1}), Catch::Contains("(C, H, W)"));
  CHECK_THROWS_WITH(m.conv_transpose2d("up", row, {.out_channels = 4}), Catch::Contains("(C, H, W)"));
}

TEST_CASE("a batch normalisation without weights has no parameters, and without running statistics no buffers") {
  for (const bool affine : {false, true})
    for (const bool tracked : {false, true}) {
      dp::ModelBuilder m("norm", dp::Shape{4, 5, 7});
      const auto x = m.batch_norm2d("bn", m.input(), {.affine = affine, .track_running_stats = tracked});
      const dp::Model model = m.build(x);
      CHECK(model.parameters().size() == (affine ? 2 : 0));
      CHECK(model.buffers().size() == (tracked ? 3 : 0));
    }
}

TEST_CASE("tensor views share memory, clones do not") {
  dp::Tensor t(dp::Shape{4, 2});
  dp::Tensor view = t.rows(1, 3);
  view.data<float>()[0] = 5;
  CHECK(t.data<float>()[2] == 5);
  CHECK(t.clone().data<float>() != t.data<float>());
  CHECK_THROWS_AS(t.data<double>(), dp::Error);
  CHECK_THROWS_AS(t.rows(3, 5), dp::Error);
}
