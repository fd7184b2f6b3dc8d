#include "dp/shape.h"

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

TEST_CASE("tensor views share memory, clones do not") {
  dp::Tensor t(dp::Shape{4, 2});
  dp::Tensor view = t.rows(1, 3);
  view.data<float>()[0] = 5;
  CHECK(t.data<float>()[2] == 5);
  CHECK(t.clone().data<float>() != t.data<float>());
  CHECK_THROWS_AS(t.data<double>(), dp::Error);
  CHECK_THROWS_AS(t.rows(3, 5), dp::Error);
}
