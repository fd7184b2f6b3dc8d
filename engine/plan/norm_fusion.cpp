#include "engine/plan/norm_fusion.h"

#include <algorithm>

namespace dp::engine {

std::vector<NormNeighbours> norm_neighbours(const std::vector<Node>& nodes, bool adjacent) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<int>> readers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const int input : nodes[i].inputs)
      if (input >= 0) readers[at(input)].push_back(static_cast<int>(i));

  const auto is_conv = [&](int i) { return i >= 0 && nodes[at(i)].kind == NodeKind::conv; };
  const auto is_plain = [&](int i) { return is_conv(i) && nodes[at(i)].bias < 0 && !nodes[at(i)].relu; };
  std::vector<NormNeighbours> all(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (node.kind != NodeKind::norm) continue;
    NormNeighbours& own = all[i];
    const int number = static_cast<int>(i), before = node.inputs[0];
    if (is_conv(before) && !nodes[at(before)].relu && readers[at(before)].size() == 1) all[at(before)].folds = number;
    if (before >= 0 && is_plain(before) && readers[at(before)].size() == 1 && (!adjacent || before + 1 == number)) {
      own.moments = before;
      all[at(before)].normalizes = number;
    }
    // Backward visits the nodes in reverse: the first reader contributes its gradient last.
    const std::vector<int>& behind = readers[i];
    const bool each_once = behind.size() == 1 || (behind.size() == 2 && behind[0] != behind[1]);
    if (!each_once) continue;
    const int first = *std::ranges::min_element(behind);
    if (!is_conv(first) || (adjacent && first != number + 1)) continue;
    own.gradient = first;
    if (behind.size() == 1 && is_plain(first) && node.relu && node.inputs.size() == 1) own.reader = first;
  }
  return all;
}

}  // namespace dp::engine
