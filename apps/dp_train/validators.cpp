#include "validators.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace dp_train {
namespace {

template <typename T>
bool parses(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string shown(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

template <typename Allowed>
CLI::Validator number(const Allowed& allowed, const std::string& range) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = std::numeric_limits<double>::quiet_NaN();
        return parses(text, value) && allowed(value) ? std::string() : "'" + text + "' is not a number " + range;
      },
      "");
}

}  // namespace

CLI::Validator whole(std::int64_t lowest, std::int64_t highest) {
  const std::string range = "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest);
  return CLI::Validator(
      [=](std::string& text) {
        std::int64_t value = 0;
        return parses(text, value) && value >= lowest && value <= highest ? std::string()
                                                                          : "'" + text + "' is not " + range;
      },
      "");
}

CLI::Validator real(double lowest, double highest) {
  return number([=](double value) { return value >= lowest && value <= highest; },
                "from " + shown(lowest) + " to " + shown(highest));
}

CLI::Validator below(double lowest, double limit) {
  return number([=](double value) { return value >= lowest && static_cast<float>(value) < static_cast<float>(limit); },
                "from " + shown(lowest) + " to below " + shown(limit));
}

CLI::Validator positive(double highest) {
  return number([=](double value) { return value > 0 && value <= highest; }, "greater than 0, up to " + shown(highest));
}

CLI::Validator seed_number() {
  return CLI::Validator(
      [](std::string& text) {
        std::uint64_t value = 0;
        return parses(text, value) ? std::string()
                                   : "'" + text + "' is not a whole number from 0 to 18446744073709551615";
      },
      "");
}

CLI::Validator not_empty(const std::string& what) {
  return CLI::Validator([=](std::string& text) { return text.empty() ? "it is empty; name " + what : std::string(); },
                        "");
}

}  // namespace dp_train
