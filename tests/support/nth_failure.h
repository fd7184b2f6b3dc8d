// DP_FAIL=fail:KIND:N[:devN][:startN]: the N-th call of a kind fails. docs/reference/failpoints.md has the grammar.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

namespace dp::test {

// N of the first clause of this kind that applies to this process; 0: none.
inline long nth_to_fail(std::string_view kind) {
  const auto applies = [](const std::string& clause, const char* part, const char* variable) {
    const std::size_t at = clause.find(part);
    const char* const value = std::getenv(variable);
    return at == clause.npos ||
           std::atoi(clause.c_str() + at + std::string_view(part).size()) == (value != nullptr ? std::atoi(value) : -1);
  };
  const char* const text = std::getenv("DP_FAIL");
  const std::string begin = "fail:" + std::string(kind) + ":";
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string clause(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(clause.size() + 1, rest.size()));
    if (clause.starts_with(begin) && applies(clause, ":dev", "RANK") && applies(clause, ":start", "DP_RESTARTS"))
      return std::atol(clause.c_str() + begin.size());
  }
  return 0;
}

// Counts the calls of several threads down to the one that fails.
class NthFailure {
 public:
  void arm(long number) { left_ = number; }
  bool armed() const { return left_ > 0; }  // the call has not failed yet
  bool now() { return left_.load(std::memory_order_relaxed) > 0 && left_.fetch_sub(1) == 1; }

 private:
  std::atomic<long> left_{0};
};

}  // namespace dp::test
