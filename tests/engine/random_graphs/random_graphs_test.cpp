// Random networks: gradients against difference quotients, fused plans, sync batch norm and the CPU backend.
#include <map>
#include <string>

#include "engine/random_graphs/graph_gradients.h"
#include "engine/random_graphs/random_graph.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

constexpr std::uint64_t kGraphs = 120;

const Layer& layer_of(const Model& model, int index) { return model.layers()[static_cast<std::size_t>(index)]; }

// Whether the layer is a T whose first input is an Inner.
template <typename T, typename Inner>
bool is_of(const Model& model, int index) {
  const Layer& layer = layer_of(model, index);
  return std::holds_alternative<T>(layer.kind) && std::holds_alternative<Inner>(layer_of(model, layer.inputs[0]).kind);
}

}  // namespace

TEST_CASE("random graphs: a hundred and twenty graphs cover every layer, several readers, and nested residuals") {
  std::map<std::string, int> found;
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) {
    const Model model = random_graph(seed);
    std::vector<int> readers(model.layers().size());
    for (std::size_t i = 0; i < model.layers().size(); ++i) {
      const Layer& layer = model.layers()[i];
      for (const int input : layer.inputs) found["several readers"] += ++readers[static_cast<std::size_t>(input)] == 2;
      ++found["layer " + std::to_string(layer.kind.index())];
      for (const int input : layer.inputs) {
        const bool add = std::holds_alternative<Add>(layer.kind);
        found["residual of a residual"] += add && std::holds_alternative<Add>(layer_of(model, input).kind);
        found["add(relu(conv), x)"] += add && is_of<Relu, Conv2d>(model, input);
        found["dropout(relu(linear))"] +=
            std::holds_alternative<Dropout>(layer.kind) && is_of<Relu, Linear>(model, input);
      }
    }
  }
  for (std::size_t kind = 0; kind < std::variant_size_v<LayerKind>; ++kind) {
    INFO("layer " << kind);
    CHECK(found["layer " + std::to_string(kind)] >= 10);
  }
  for (const char* what :
       {"several readers", "residual of a residual", "add(relu(conv), x)", "dropout(relu(linear))"}) {
    INFO(what);
    CHECK(found[what] >= 8);
  }
}

TEST_CASE("random graphs: gradients equal difference quotients, also fused, synchronised and on the CPU") {
  for (std::uint64_t seed = 0; seed < kGraphs; ++seed) check_gradients(seed);
}
