// Networks that nobody wrote: gradients against difference quotients, fused plans, synchronised replicas and the CPU.
#include <map>
#include <string>

#include "engine/graph_gradients.h"
#include "engine/random_graph.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::test;

namespace {

template <typename T>
bool is(const Model& model, int layer) {
  return std::holds_alternative<T>(model.layers()[static_cast<std::size_t>(layer)].kind);
}

}  // namespace

TEST_CASE(
    "random graphs: sixty have every layer, several readers, residuals of residuals, and ReLUs of convolutions added") {
  std::map<std::string, int> found;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Model model = random_graph(seed);
    std::vector<int> readers(model.layers().size());
    for (std::size_t i = 0; i < model.layers().size(); ++i) {
      const Layer& layer = model.layers()[i];
      for (const int input : layer.inputs) found["several readers"] += ++readers[static_cast<std::size_t>(input)] == 2;
      ++found["layer " + std::to_string(layer.kind.index())];
      if (!std::holds_alternative<Add>(layer.kind)) continue;
      for (const int input : layer.inputs) {
        found["residual of a residual"] += is<Add>(model, input);
        if (is<Relu>(model, input))
          found["add(relu(conv), x)"] += is<Conv2d>(model, model.layers()[static_cast<std::size_t>(input)].inputs[0]);
      }
    }
  }
  for (std::size_t kind = 0; kind < std::variant_size_v<LayerKind>; ++kind)
    CHECK(found["layer " + std::to_string(kind)] >= 10);
  for (const char* what : {"several readers", "residual of a residual", "add(relu(conv), x)"}) {
    INFO(what);
    CHECK(found[what] >= 10);
  }
}

TEST_CASE("random graphs: gradients equal difference quotients, fused, synchronised and on the CPU too") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) check_gradients(seed);
}
