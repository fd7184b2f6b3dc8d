#include "command_line/suggestion.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

namespace command_line {
namespace {

// The number of characters to insert, remove or replace; two swapped neighbours count as one (Damerau-Levenshtein).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last), std::swap(last, now);
  }
  return last[b.size()];
}

std::set<std::string> parts_of(const std::string& name) {
  std::set<std::string> parts;
  std::istringstream text(name);
  for (std::string part; std::getline(text, part, '-');)
    if (!part.empty()) parts.insert(part);
  return parts;
}

// Words that other programs put before the name of an option.
const std::set<std::string> kFillers{"enable", "max",   "n",        "num",  "number",
                                     "total",  "train", "training", "type", "use"};

// Compares the words of an option with those of an unknown one. True if the option contains all of them ("--model-ema"
// for "--ema"), or if the unknown one only adds fillers ("--max-epochs" for "--epochs").
bool has_words_of(const std::set<std::string>& option, const std::set<std::string>& word) {
  if (option.contains("no") != word.contains("no")) return false;
  if (std::ranges::includes(option, word)) return true;
  return std::ranges::all_of(
             word, [&](const std::string& part) { return option.contains(part) || kFillers.contains(part); }) &&
         std::ranges::includes(word, option);
}

}  // namespace

std::string closest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::size_t least = std::max<std::size_t>(1, letters / 4) + 1;
  for (const std::string& name : names) {
    if (word.starts_with("--no-") != name.starts_with("--no-") && word.starts_with("--")) continue;  // the opposite
    const bool longer_form = word.size() >= 3 && name.starts_with(word);  // --label for --label-smoothing
    const std::size_t changes = longer_form ? 1 : distance(word, name);
    if (changes < least) least = changes, best = name;
  }
  if (!best.empty() || !word.starts_with("--")) return best;
  std::size_t fewest = 0;  // number of words of `best`
  for (const std::string& name : names) {
    const std::set<std::string> parts = parts_of(name);
    if (has_words_of(parts, parts_of(word)) && (fewest == 0 || parts.size() < fewest))
      fewest = parts.size(), best = name;
  }
  return best;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& names) {
  const std::string name = closest(word, names);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

}  // namespace command_line
