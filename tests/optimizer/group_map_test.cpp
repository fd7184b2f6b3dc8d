// Which elements of the arenas belong to which parameter group.
#include <cmath>

#include "dp/error.h"
#include "engine/optimizer/optimizer.h"
#include "support/catch.h"

namespace {

using namespace dp;
using engine::ParameterGroups;
using kernels::Range;
using Ranges = std::vector<Range>;

// Elements of the arenas: a.weight 0 to 40, a.bias 48 to 58, b.weight 64 to 94, b.bias 96 to 99; the end is at 112.
Model two_layers() {
  ModelBuilder m("two_layers", {4});
  const auto x = m.linear("a", m.input(), {.out_features = 10});
  return m.build(m.linear("b", x, {.out_features = 3}));
}

ParameterGroups groups_of(std::vector<ParameterGroup> groups) {
  const Model model = two_layers();
  std::vector<kernels::Layout> layouts;
  for (const ParameterSpec& parameter : model.parameters()) {
    kernels::Layout layout;
    layout.bytes = static_cast<std::size_t>(parameter.shape.numel()) * sizeof(float);
    layouts.push_back(layout);
  }
  return ParameterGroups(std::move(groups), engine::ParameterTable(model, layouts, DType::f32));
}

}  // namespace

TEST_CASE("each block of 16 elements belongs to the first group that its parameter fits") {
  const ParameterGroups groups = groups_of({{.pattern = "b.*"}, {.vectors = true}, {.pattern = "a.weight"}});
  CHECK(groups.map() == std::vector<std::uint8_t>{3, 3, 3, 2, 1, 1, 1});
  CHECK(groups_of({{.pattern = "?.weight"}}).map() == std::vector<std::uint8_t>{1, 1, 1, 0, 1, 1, 0});
  CHECK(groups_of({{.pattern = "*.weight", .vectors = true}}).map() == std::vector<std::uint8_t>(7));
  CHECK(groups_of({}).map().empty());
}

TEST_CASE("frozen elements of any range are returned as joined pieces") {
  const ParameterGroups one = groups_of({{.pattern = "b.*"}, {.pattern = "a.weight", .frozen = true}});
  CHECK(one.frozen_in({0, 112}) == Ranges{{0, 48}});
  CHECK(one.frozen_in({16, 40}) == Ranges{{16, 40}});
  CHECK(one.frozen_in({32, 100}) == Ranges{{32, 48}});
  CHECK(one.frozen_in({48, 112}).empty());
  CHECK(one.frozen_in({16, 16}).empty());
  const ParameterGroups two = groups_of({{.vectors = true}, {.frozen = true}});
  CHECK(two.frozen_in({0, 112}) == Ranges{{0, 48}, {64, 96}});
  CHECK(two.frozen_in({32, 80}) == Ranges{{32, 48}, {64, 80}});
  CHECK(groups_of({{.frozen = true}}).frozen_in({0, 112}) == Ranges{{0, 112}});
  CHECK(groups_of({}).frozen_in({0, 112}).empty());
}

TEST_CASE("the inputs of an update have the rate and the decay of each group") {
  const ParameterGroups groups = groups_of({{.lr_factor = 0.5f},
                                            {.weight_decay = 0.0f},
                                            {.lr_factor = 4, .weight_decay = 3.0f},
                                            {.lr_factor = 2, .weight_decay = 5.0f, .frozen = true}});
  for (Optimizer optimizer : engine::every_optimizer()) {
    std::visit([](auto& own) { own.lr = 0.25f, own.weight_decay = 0.125f; }, optimizer);
    kernels::UpdateInputs inputs;
    groups.set(inputs, optimizer);
    const std::pair<float, float> expected[] = {{0.25f, 0.125f}, {0.125f, 0.125f}, {0.25f, 0}, {1, 3}, {0, 0}, {0, 0}};
    for (std::size_t i = 0; i < std::size(expected); ++i) {
      INFO(name_of(optimizer) << " group " << i);
      CHECK(inputs.groups[i].lr == expected[i].first);
      CHECK(inputs.groups[i].weight_decay == expected[i].second);
    }
  }
}

TEST_CASE("the factor and the decay of a group are finite and not negative") {
  const Model model = two_layers();
  const auto refused = [&](const ParameterGroup& group) {
    try {
      engine::check_groups({group}, model);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(
          std::string(error.what()) ==
          "parameter group '*': the factor of the learning rate and the weight decay must be finite and not negative");
      return true;
    }
    return false;
  };
  CHECK_FALSE(refused({}));
  CHECK_FALSE(refused({.lr_factor = 0, .weight_decay = 0.0f}));
  for (const float wrong : {-1.0f, INFINITY, NAN}) {
    CHECK(refused({.lr_factor = wrong}));
    CHECK(refused({.weight_decay = wrong}));
  }
  CHECK_THROWS_WITH(engine::check_groups({{.pattern = "c.*"}}, model),
                    "no parameter of the model matches 'c.*'; the names are those of a state dict, such as 'a.weight'");
  CHECK_THROWS_WITH(engine::check_groups({{.pattern = "*.weight", .vectors = true}}, model),
                    "no parameter of the model matches '*.weight' and has one dimension; the names are those of a "
                    "state dict, such as 'a.weight'");
}
