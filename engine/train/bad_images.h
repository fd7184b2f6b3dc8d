// The images that --bad-images skip has replaced, of all ranks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "dp/dataset.h"
#include "dp/process_group.h"

namespace dp {

class BadImages {
 public:
  // Adds what the data set has replaced since the last call, and returns what is new. With several ranks, every rank
  // calls it for the same data set.
  std::vector<std::string> collect(const Dataset& part, ProcessGroup* group) {
    std::vector<std::string> added;
    const auto replaced = part.replaced();
    if (!replaced) return added;
    const auto add = [&](const std::string& fault) {
      if (all_.insert(fault).second) added.push_back(fault);
    };
    if (group == nullptr) {
      for (const std::string& fault : *replaced) add(fault);
      return added;
    }
    std::set<std::string> unsent(replaced->begin(), replaced->end());
    for (const std::string& sent : sent_) unsent.erase(sent);
    for (bool more = true; more;) {
      more = false;
      for (const std::string& text : group->exchange(packed(unsent))) {
        more = more || !text.empty();
        for (const std::string& fault : lines_of(text)) add(fault);
      }
    }
    return added;
  }
  // Adds images that an earlier part of the run has listed, one a line.
  void add_listed(const std::string& text) {
    for (const std::string& fault : lines_of(text)) all_.insert(fault);
  }
  const std::set<std::string>& all() const { return all_; }
  std::string text() const {
    std::string text;
    for (const std::string& fault : all_) text += fault + "\n";
    return text;
  }

 private:
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      lines.push_back(text.substr(begin, end - begin));
    return lines;
  }
  // Moves as many faults to sent_ as an exchange can hold.
  std::string packed(std::set<std::string>& unsent) {
    constexpr std::size_t kLongest = 32 << 10;
    std::string text;
    while (!unsent.empty() && (text.empty() || text.size() + unsent.begin()->size() < kLongest)) {
      text += *unsent.begin() + "\n";
      sent_.insert(unsent.extract(unsent.begin()));
    }
    return text;
  }

  std::set<std::string> all_, sent_;
};

// `file`: where all are listed; may be empty.
inline std::string to_notice(const std::vector<std::string>& added, const std::string& file) {
  constexpr std::size_t kShown = 5;
  std::string text = fmt::format("{} bad image{} skipped", added.size(), added.size() == 1 ? " was" : "s were");
  if (!file.empty()) text += fmt::format(", listed in {}", file);
  for (std::size_t i = 0; i < std::min(added.size(), kShown); ++i) text += (i == 0 ? ": " : "; ") + added[i];
  return text + (added.size() > kShown ? "; ..." : "");
}

}  // namespace dp
