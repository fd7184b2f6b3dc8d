#include "engine/step/pipeline/stage_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>

#include "dp/error.h"

namespace dp {

// Builds a model from consecutive layers of another one.
class ModelSplitter {
 public:
  // Copies the layers [first, last). The output of layer `crossing` becomes the input.
  static Model part(const Model& whole, int first, int last, int crossing) {
    Model part;
    part.name_ = whole.name_;
    const Layer& before = whole.layers_[static_cast<std::size_t>(crossing)];
    part.layers_.push_back({whole.layers_.front().name, Input{}, {}, before.output});
    for (int i = first; i < last; ++i) {
      Layer layer = whole.layers_[static_cast<std::size_t>(i)];
      for (int& input : layer.inputs) input = input == crossing ? 0 : input - first + 1;
      part.layers_.push_back(std::move(layer));
    }
    part.parameters_ = within(whole.parameters_, first, last);
    part.buffers_ = within(whole.buffers_, first, last);
    return part;
  }

 private:
  template <typename Spec>
  static std::vector<Spec> within(const std::vector<Spec>& all, int first, int last) {
    std::vector<Spec> specs;
    for (const Spec& spec : all)
      if (spec.layer >= first && spec.layer < last) {
        specs.push_back(spec);
        specs.back().layer += 1 - first;
      }
    return specs;
  }
};

}  // namespace dp

namespace dp::engine {
namespace {

// If the layers from `first` on read the output of only one earlier layer: that layer. Otherwise -1.
int crossing_at(const Model& model, int first) {
  int crossing = -1;
  for (std::size_t i = static_cast<std::size_t>(first); i < model.layers().size(); ++i)
    for (const int input : model.layers()[i].inputs) {
      if (input >= first || input == crossing) continue;
      if (crossing >= 0) return -1;
      crossing = input;
    }
  return crossing;
}

// "layer2.0" for "layer2.0.conv1" if it is the first layer of layer2.0, else the layer's own name.
std::string name_of_cut(const Model& model, std::size_t layer) {
  const std::string& name = model.layers()[layer].name;
  const std::string block = name.substr(0, name.rfind('.') + 1);
  if (block.empty()) return name;
  for (std::size_t i = 0; i < layer; ++i)
    if (model.layers()[i].name.starts_with(block)) return name;
  return block.substr(0, block.size() - 1);
}

std::string list_of(std::span<const Cut> cuts) {
  std::string list;
  for (const Cut& cut : cuts) list += (list.empty() ? "" : ", ") + cut.name;
  return list;
}

// Selects cuts by dynamic programming.
class Balance {
 public:
  Balance(std::span<const Cut> cuts, std::span<const PieceCost> pieces, int stages, std::size_t device_bytes)
      : cuts_(cuts), stages_(static_cast<std::size_t>(stages)), device_bytes_(device_bytes), seconds_(1), bytes_(1) {
    for (const PieceCost& piece : pieces) {
      seconds_.push_back(seconds_.back() + piece.seconds);
      bytes_.push_back(bytes_.back() + piece.bytes);
    }
  }

  // Empty if no selection fits into the memory.
  std::optional<std::vector<int>> run() const {
    const double slowest = cost([this](std::size_t from, std::size_t to) { return seconds(from, to); },
                                [](double a, double b) { return std::max(a, b); }, nullptr);
    if (slowest == kNever) return std::nullopt;
    std::vector<int> chosen;
    cost([&](std::size_t from, std::size_t to) { return seconds(from, to) <= slowest ? handed_over(from) : kNever; },
         [](double a, double b) { return a + b; }, &chosen);
    return chosen;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // The time of a stage with the pieces [from, to); kNever if it exceeds the memory.
  double seconds(std::size_t from, std::size_t to) const {
    return bytes_[to] - bytes_[from] <= device_bytes_ ? seconds_[to] - seconds_[from] : kNever;
  }
  double handed_over(std::size_t from) const {
    return from == 0 ? 0.0 : static_cast<double>(cuts_[from - 1].shape.numel());
  }

  // Minimises the combined cost of all stages; `of` is the cost of one. Stores the cuts in `chosen` unless it is null.
  template <typename Of, typename Combine>
  double cost(const Of& of, const Combine& combine, std::vector<int>* chosen) const {
    const std::size_t count = seconds_.size() - 1;
    // For the pieces before `to` in s + 1 stages: best[s][to] is the lowest cost, from[s][to] the last stage's begin.
    std::vector best(stages_, std::vector(count + 1, kNever));
    std::vector from(stages_, std::vector<std::size_t>(count + 1));
    for (std::size_t to = 1; to <= count; ++to) best[0][to] = of(0, to);
    for (std::size_t s = 1; s < stages_; ++s)
      for (std::size_t to = s + 1; to <= count; ++to)
        for (std::size_t begin = s; begin < to; ++begin) {
          const double with = combine(best[s - 1][begin], of(begin, to));
          if (with < best[s][to]) best[s][to] = with, from[s][to] = begin;
        }
    if (chosen != nullptr) {
      chosen->resize(stages_ - 1);
      for (std::size_t s = stages_ - 1, to = count; s > 0; --s) {
        to = from[s][to];
        (*chosen)[s - 1] = static_cast<int>(to) - 1;
      }
    }
    return best[stages_ - 1][count];
  }

  std::span<const Cut> cuts_;
  std::size_t stages_, device_bytes_;
  std::vector<double> seconds_;     // prefix sums over the pieces
  std::vector<std::size_t> bytes_;  // likewise
};

}  // namespace

std::vector<Cut> possible_cuts(const Model& model) {
  std::vector<Cut> cuts;
  for (std::size_t i = 1; i < model.layers().size(); ++i) {
    const LayerKind& kind = model.layers()[i].kind;
    if (!std::holds_alternative<Conv2d>(kind) && !std::holds_alternative<Linear>(kind)) continue;
    std::size_t first = i;
    while (std::holds_alternative<Flatten>(model.layers()[first - 1].kind)) --first;
    const int crossing = crossing_at(model, static_cast<int>(first));
    const bool trains = std::ranges::any_of(  // the stage before the cut has parameters
        model.parameters(), [&](const ParameterSpec& spec) { return spec.layer < static_cast<int>(first); });
    if (crossing > 0 && trains)
      cuts.push_back({name_of_cut(model, i), static_cast<int>(first), crossing,
                      model.layers()[static_cast<std::size_t>(crossing)].output});
  }
  return cuts;
}

std::vector<int> balanced_cuts(std::span<const Cut> cuts, std::span<const PieceCost> pieces, int stages,
                               std::size_t device_bytes) {
  if (static_cast<std::size_t>(stages) > cuts.size() + 1)
    throw Error(ErrorCode::usage, fmt::format("{} stages are too many: the model can be cut at {} places ({}); use at "
                                              "most {} stages",
                                              stages, cuts.size(), list_of(cuts), cuts.size() + 1));
  const std::optional<std::vector<int>> chosen = Balance(cuts, pieces, stages, device_bytes).run();
  if (!chosen)
    throw Error(ErrorCode::device, fmt::format("the weights and gradients of {} stages do not fit into {:.1f} MiB per "
                                               "device; use more stages",
                                               stages, static_cast<double>(device_bytes) / (1 << 20)));
  return *chosen;
}

std::vector<int> cuts_named(std::span<const Cut> cuts, std::span<const std::string> names) {
  std::vector<int> chosen;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(cuts, name, &Cut::name);
    if (found == cuts.end())
      throw Error(ErrorCode::usage,
                  fmt::format("the model cannot be cut at '{}'; use some of {}", name, list_of(cuts)));
    const int index = static_cast<int>(found - cuts.begin());
    if (!chosen.empty() && chosen.back() >= index)
      throw Error(ErrorCode::usage, fmt::format("the cut at '{}' must come before '{}'; name cuts in forward order",
                                                name, cuts[static_cast<std::size_t>(chosen.back())].name));
    chosen.push_back(index);
  }
  return chosen;
}

std::vector<Model> split(const Model& model, std::span<const Cut> cuts) {
  std::vector<Model> parts;
  int first = 1, crossing = 0;
  for (const Cut& cut : cuts) {
    parts.push_back(ModelSplitter::part(model, first, cut.layer, crossing));
    first = cut.layer, crossing = cut.crossing;
  }
  parts.push_back(ModelSplitter::part(model, first, static_cast<int>(model.layers().size()), crossing));
  return parts;
}

}  // namespace dp::engine
