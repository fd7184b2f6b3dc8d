#include "engine/step/pipeline/stage_split.h"

#include <algorithm>
#include <functional>

#include "dp/error.h"
#include "dp/models.h"
#include "dp/random.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::engine;
using Names = std::vector<std::string>;

Names names_of(const std::vector<Cut>& cuts) {
  Names names;
  for (const Cut& cut : cuts) names.push_back(cut.name);
  return names;
}

const std::string& name_of(const Model& model, int layer) {
  return model.layers()[static_cast<std::size_t>(layer)].name;
}

// Exhaustive search: the time of the slowest stage, then the number of transferred elements.
std::pair<double, double> exhaustive_search(const std::vector<Cut>& cuts, const std::vector<PieceCost>& pieces,
                                            int stages, std::size_t device_bytes) {
  const double never = 1e300;
  std::pair best{never, never};
  for (unsigned chosen = 0; chosen < 1u << cuts.size(); ++chosen) {
    if (__builtin_popcount(chosen) != stages - 1) continue;
    double slowest = 0, seconds = 0, handed_over = 0;
    std::size_t bytes = 0;
    bool fits = true;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      seconds += pieces[i].seconds, bytes += pieces[i].bytes;
      slowest = std::max(slowest, seconds);
      fits = fits && bytes <= device_bytes;
      if (i < cuts.size() && (chosen >> i & 1) != 0) {
        handed_over += static_cast<double>(cuts[i].shape.numel());
        seconds = 0, bytes = 0;
      }
    }
    if (fits) best = std::min(best, std::pair{slowest, handed_over});
  }
  return best;
}

std::pair<double, double> cost_of(const std::vector<Cut>& cuts, const std::vector<PieceCost>& pieces,
                                  const std::vector<int>& chosen) {
  double slowest = 0, seconds = 0, handed_over = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    seconds += pieces[i].seconds;
    slowest = std::max(slowest, seconds);
    if (std::ranges::find(chosen, static_cast<int>(i)) == chosen.end()) continue;
    handed_over += static_cast<double>(cuts[i].shape.numel());
    seconds = 0;
  }
  return {slowest, handed_over};
}

void expect_refused(ErrorCode code, const std::string& text, const std::function<void()>& call) {
  try {
    call();
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK_THAT(error.what(), Catch::Contains(text));
  }
}

}  // namespace

TEST_CASE("stages: residual networks can be split between blocks and before the last layer") {
  CHECK(names_of(possible_cuts(models::resnet18())) ==
        Names{"layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0", "layer4.1", "fc"});
  CHECK(possible_cuts(models::resnet50()).size() == 17);
  CHECK(possible_cuts(models::resnet152()).size() == 51);
  CHECK(names_of(possible_cuts(models::mnist_convnet())) == Names{"conv2", "fc1", "fc2"});
  CHECK(names_of(possible_cuts(models::mlp({.hidden = {8, 8, 8}}))) == Names{"fc2", "fc3", "fc4"});
  // Not before c, because two tensors would be transferred: a and b.
  ModelBuilder m("long shortcut", Shape{2, 4, 4});
  const auto a = m.conv2d("a", m.input(), {.out_channels = 3, .padding = 1});
  const auto b = m.conv2d("b", a, {.out_channels = 3, .padding = 1});
  const auto c = m.conv2d("c", b, {.out_channels = 3, .padding = 1});
  const auto d = m.linear("d", m.flatten(m.add(a, c)), {.out_features = 2});
  CHECK(names_of(possible_cuts(m.build(d))) == Names{"b", "d"});
}

TEST_CASE("stages: a cut names the block that it begins, or the layer if it is inside a block") {
  ModelBuilder m("chain", Shape{2, 8, 8});
  auto x = m.conv2d("stem.conv", m.max_pool2d(m.input()), {.out_channels = 3, .padding = 1});
  x = m.conv2d("a.conv1", x, {.out_channels = 4, .padding = 1});
  x = m.batch_norm2d("a.bn2", m.conv2d("a.conv2", x, {.out_channels = 5, .padding = 1}));
  x = m.conv2d("b.conv1", x, {.out_channels = 6, .padding = 1});
  const Model model = m.build(m.linear("b.fc", m.flatten(x), {.out_features = 2}));
  // Not before stem.conv, because the layers before it have no parameters.
  const std::vector<Cut> cuts = possible_cuts(model);
  REQUIRE(names_of(cuts) == Names{"a", "a.conv2", "b", "b.fc"});
  const Names first{"a.conv1", "a.conv2", "b.conv1"}, read{"stem.conv", "a.conv1", "a.bn2", "b.conv1"};
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(name_of(model, cuts[i].layer) == first[i]);
  CHECK(std::holds_alternative<Flatten>(model.layers()[static_cast<std::size_t>(cuts[3].layer)].kind));
  for (std::size_t i = 0; i < read.size(); ++i) CHECK(name_of(model, cuts[i].crossing) == read[i]);
  for (std::size_t i = 0; i < read.size(); ++i) CHECK(cuts[i].shape == Shape{static_cast<std::int64_t>(i) + 3, 4, 4});
}

TEST_CASE("stages: a cut has the shape of the transferred tensor") {
  const std::vector<Cut> cuts = possible_cuts(models::resnet18({.input = {3, 32, 32}}));
  CHECK(cuts[0].shape == Shape{64, 32, 32});
  CHECK(cuts[2].shape == Shape{64, 32, 32});
  CHECK(cuts[4].shape == Shape{128, 16, 16});
  CHECK(cuts[8].shape == Shape{512, 1, 1});  // before it is flattened
}

TEST_CASE("stages: together they have the layers, parameters and buffers of the whole model") {
  for (const Model& whole : {models::resnet18(), models::resnet50(), models::mnist_convnet(), models::mlp()}) {
    const std::vector<Cut> cuts = possible_cuts(whole);
    const std::vector<Model> parts = split(whole, cuts);
    REQUIRE(parts.size() == cuts.size() + 1);
    INFO(whole.name());
    CHECK(parts.front().input() == whole.input());
    CHECK(parts.back().output() == whole.output());
    std::vector<std::string> parameters, buffers;
    std::size_t layer = 1;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) CHECK(parts[i].input() == parts[i - 1].output());
      for (std::size_t at = 1; at < parts[i].layers().size(); ++at, ++layer) {
        const Layer &part = parts[i].layers()[at], &original = whole.layers()[layer];
        REQUIRE(part.name == original.name);
        REQUIRE(part.kind.index() == original.kind.index());
        REQUIRE(part.output == original.output);
        REQUIRE(part.key == static_cast<int>(layer));
        REQUIRE(part.inputs.size() == original.inputs.size());
        for (std::size_t k = 0; k < part.inputs.size(); ++k) {
          const int crossing = i == 0 ? 0 : cuts[i - 1].crossing;
          if (part.inputs[k] == 0)
            REQUIRE(original.inputs[k] == crossing);
          else
            REQUIRE(name_of(parts[i], part.inputs[k]) == name_of(whole, original.inputs[k]));
        }
      }
      for (const ParameterSpec& spec : parts[i].parameters()) {
        parameters.push_back(spec.name);
        REQUIRE(spec.name.starts_with(parts[i].layers()[static_cast<std::size_t>(spec.layer)].name + "."));
      }
      for (const BufferSpec& spec : parts[i].buffers()) buffers.push_back(spec.name);
    }
    CHECK(layer == whole.layers().size());
    REQUIRE(parameters.size() == whole.parameters().size());
    for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(parameters[i] == whole.parameters()[i].name);
    REQUIRE(buffers.size() == whole.buffers().size());
    for (std::size_t i = 0; i < buffers.size(); ++i) CHECK(buffers[i] == whole.buffers()[i].name);
  }
}

TEST_CASE("stages: the balance equals that of an exhaustive search") {
  const std::vector<Cut> cuts = possible_cuts(models::resnet18());
  Random random(3, RandomUse::synthetic);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<PieceCost> pieces(cuts.size() + 1);
    for (PieceCost& piece : pieces)
      piece = {static_cast<double>(1 + random.below(6)), static_cast<std::size_t>(1 + random.below(9))};
    const int stages = 1 + static_cast<int>(random.below(5));
    const std::size_t device_bytes = trial % 2 == 0 ? 1000 : 10 + random.below(40);
    const auto best = exhaustive_search(cuts, pieces, stages, device_bytes);
    INFO("trial " << trial << ", " << stages << " stages of " << device_bytes << " bytes");
    if (best.first < 1e300) {
      const std::vector<int> chosen = balanced_cuts(cuts, pieces, stages, device_bytes);
      REQUIRE(chosen.size() + 1 == static_cast<std::size_t>(stages));
      REQUIRE(std::ranges::is_sorted(chosen));
      REQUIRE(cost_of(cuts, pieces, chosen) == best);
    } else {
      expect_refused(ErrorCode::device, "do not fit into", [&] { balanced_cuts(cuts, pieces, stages, device_bytes); });
    }
  }
}

TEST_CASE("stages: errors about cuts list the possible ones") {
  const std::vector<Cut> cuts = possible_cuts(models::mnist_convnet());
  const std::vector<PieceCost> pieces(4, PieceCost{1, 1});
  expect_refused(ErrorCode::usage, "the model can be cut at 3 places (conv2, fc1, fc2); use at most 4 stages",
                 [&] { balanced_cuts(cuts, pieces, 5, 100); });
  const std::vector<PieceCost> large(4, PieceCost{1, std::size_t{1} << 20});
  CHECK(balanced_cuts(cuts, large, 2, std::size_t{2} << 20) == std::vector{1});
  expect_refused(ErrorCode::device,
                 "the weights and gradients of 2 stages do not fit into 1.5 MiB per device; use more stages",
                 [&] { balanced_cuts(cuts, large, 2, std::size_t{3} << 19); });
  const Names fine{"conv2", "fc2"}, unknown{"conv9"}, backward{"fc1", "conv2"}, twice{"fc1", "fc1"};
  CHECK(cuts_named(cuts, fine) == std::vector{0, 2});
  expect_refused(ErrorCode::usage, "cannot be cut at 'conv9'; use some of conv2, fc1, fc2",
                 [&] { cuts_named(cuts, unknown); });
  expect_refused(ErrorCode::usage, "the cut at 'conv2' must come before 'fc1'", [&] { cuts_named(cuts, backward); });
  expect_refused(ErrorCode::usage, "the cut at 'fc1' must come before 'fc1'; name cuts in forward order",
                 [&] { cuts_named(cuts, twice); });
  CHECK(cuts_named(cuts, Names()).empty());
}
