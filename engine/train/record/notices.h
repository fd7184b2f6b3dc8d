// What a run says to people, and its warnings: a fault of a record does not end a run.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace dp {

class Notices {
 public:
  // `on_message`: may be empty; must outlive this object.
  explicit Notices(const std::function<void(const std::string&)>& on_message) : on_message_(on_message) {}

  void tell(const std::string& text) const {
    if (on_message_) on_message_(text);
  }
  // A notice the first time; later ones are counted. The same fault occurs again with other step numbers and names of
  // temporary files, so warnings are compared without digits.
  void warn(const std::string& text) {
    std::string kind = text;
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    Warning& warning = warnings_[kind];
    if (warning.times++ == 0) tell(text);
    warning.text = text;
  }
  void warn_unless_empty(const std::string& text) {
    if (!text.empty()) warn(text);
  }
  // Calls write(). Each failure is a warning.
  template <typename F>
  void attempt(F&& write) {
    try {
      write();
    } catch (const std::exception& error) {
      warn(error.what());
    }
  }
  // A notice for each warning that occurred more than once since the last call.
  void count_warnings() {
    for (const auto& [kind, warning] : std::exchange(warnings_, {}))
      if (warning.times > 1) tell(fmt::format("{} times, last: {}", warning.times, warning.text));
  }

 private:
  struct Warning {
    std::string text;
    int times = 0;
  };
  const std::function<void(const std::string&)>& on_message_;
  std::map<std::string, Warning> warnings_;  // by their text without numbers
};

}  // namespace dp
