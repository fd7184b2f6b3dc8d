#include "engine/optimizer/parameter_groups.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dp/error.h"

namespace dp::engine {

using kernels::kGroupElements;

namespace {

void check(const ParameterGroup& group) {
  const auto usable = [](float value) { return std::isfinite(value) && value >= 0; };
  if (!usable(group.lr_factor) || !usable(group.weight_decay.value_or(0)))
    throw Error(ErrorCode::usage,
                fmt::format("parameter group '{}': the factor of the learning rate and the weight decay must be finite "
                            "and not negative",
                            group.pattern));
}

template <typename Parameter>
bool matches(const ParameterGroup& group, const Parameter& parameter) {
  return (!group.vectors || parameter.shape.rank() == 1) &&
         ::fnmatch(group.pattern.c_str(), parameter.name.c_str(), 0) == 0;
}

}  // namespace

void check_groups(const std::vector<ParameterGroup>& groups, const Model& model) {
  if (groups.size() >= kernels::kMaxGroups)
    throw Error(ErrorCode::usage,
                fmt::format("{} parameter groups; at most {} are possible", groups.size(), kernels::kMaxGroups - 1));
  for (const ParameterGroup& group : groups) {
    check(group);
    if (std::ranges::none_of(model.parameters(), [&](const ParameterSpec& spec) { return matches(group, spec); }))
      throw Error(ErrorCode::usage, fmt::format("no parameter of the model matches '{}'{}; the names are those of a "
                                                "state dict, such as '{}'",
                                                group.pattern, group.vectors ? " and has one dimension" : "",
                                                model.parameters().front().name));
  }
}

ParameterGroups::ParameterGroups(std::vector<ParameterGroup> groups, const ParameterTable& table)
    : groups_(std::move(groups)) {
  if (groups_.empty()) return;
  map_.resize(static_cast<std::size_t>((table.size() + kGroupElements - 1) / kGroupElements));
  for (const ParameterEntry& entry : table.entries()) {
    const auto found = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const ParameterGroup& group) { return matches(group, entry); });
    if (found == groups_.end()) continue;
    const auto begin = map_.begin() + entry.offset / kGroupElements;
    std::fill(begin, begin + (entry.count + kGroupElements - 1) / kGroupElements,
              static_cast<std::uint8_t>(found - groups_.begin() + 1));
  }
}

std::vector<kernels::Range> ParameterGroups::frozen_in(kernels::Range range) const {
  std::vector<kernels::Range> ranges;
  for (std::int64_t at = range.begin; at < range.end && !map_.empty();) {
    const std::int64_t next = std::min(range.end, (at / kGroupElements + 1) * kGroupElements);
    const std::uint8_t group = map_[static_cast<std::size_t>(at / kGroupElements)];
    if (group != 0 && groups_[group - 1u].frozen) {
      if (ranges.empty() || ranges.back().end != at) ranges.push_back({at, at});
      ranges.back().end = next;
    }
    at = next;
  }
  return ranges;
}

void ParameterGroups::set(kernels::UpdateInputs& inputs, const Optimizer& optimizer) const {
  std::visit(
      [&](const auto& own) {
        inputs.groups[0] = {own.lr, own.weight_decay};
        for (std::size_t i = 0; i < groups_.size(); ++i) {
          const ParameterGroup& group = groups_[i];
          if (!group.frozen)  // a frozen group has rate and decay 0
            inputs.groups[i + 1] = {own.lr * group.lr_factor, group.weight_decay.value_or(own.weight_decay)};
        }
      },
      optimizer);
}

}  // namespace dp::engine
