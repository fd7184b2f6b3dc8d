#include "engine/checkpoint/checkpoint_names.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace dp {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

bool is_checkpoint_name(std::string_view name) {
  return name == "last" || name == "best" || (name.starts_with("step-") && is_digits(name.substr(5)));
}

std::optional<Leftover> parse_leftover(std::string_view name) {
  if (!name.starts_with('.')) return std::nullopt;
  const std::size_t dot = name.find('.', 1);
  if (dot == std::string_view::npos || !is_checkpoint_name(name.substr(1, dot - 1))) return std::nullopt;
  const std::string_view tag = name.substr(dot + 1);
  if (!tag.starts_with("tmp-") && !tag.starts_with("old-")) return std::nullopt;
  const std::string_view numbers = tag.substr(4);
  const std::size_t dash = numbers.find('-');
  if (dash == std::string_view::npos || !is_digits(numbers.substr(0, dash)) || !is_digits(numbers.substr(dash + 1)))
    return std::nullopt;
  Leftover leftover{std::string(name.substr(1, dot - 1))};
  const auto [end, error] = std::from_chars(numbers.data(), numbers.data() + dash, leftover.owner);
  if (error != std::errc{} || leftover.owner <= 0) return std::nullopt;
  return leftover;
}

bool is_dead_or_own(pid_t owner) { return owner == ::getpid() || (::kill(owner, 0) != 0 && errno == ESRCH); }

}  // namespace dp
