// Process group options from the environment: torchrun's variables and DP_TOKEN.
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "dp/process_group.h"

namespace dp {
namespace {

std::string_view value_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

int number_in(const char* name, int lowest, int highest) {
  const std::string_view text = value_of(name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || number < lowest || number > highest)
    throw Error(ErrorCode::usage, std::string("RANK is set, but ") + name + " is '" + std::string(text) +
                                      "', not a number from " + std::to_string(lowest) + " to " +
                                      std::to_string(highest));
  return number;
}

}  // namespace

std::optional<ProcessGroupOptions> process_group_from_environment() {
  if (value_of("RANK").empty()) {
    if (!value_of("WORLD_SIZE").empty() && value_of("WORLD_SIZE") != "1")
      throw Error(ErrorCode::usage, "WORLD_SIZE is '" + std::string(value_of("WORLD_SIZE")) +
                                        "', but RANK is not set; set both, or neither");
    return std::nullopt;
  }
  constexpr int kMostRanks = 4096;
  ProcessGroupOptions options;
  options.size = number_in("WORLD_SIZE", 1, kMostRanks);
  options.rank = number_in("RANK", 0, options.size - 1);
  const std::string_view address = value_of("MASTER_ADDR"), token = value_of("DP_TOKEN");
  if (address.empty() && options.size > 1)
    throw Error(ErrorCode::usage, "RANK is set, but MASTER_ADDR is not; set it to the address of rank 0");
  if (!address.empty()) options.address = address;
  if (options.size > 1) options.port = number_in("MASTER_PORT", 1, 65534);
  // Torchrun's agent listens on MASTER_PORT itself.
  if (value_of("TORCHELASTIC_USE_AGENT_STORE") == "True") ++options.port;
  // "none" is torchrun's run id by default.
  const std::string_view run_id =
      value_of("TORCHELASTIC_RUN_ID") == "none" ? std::string_view() : value_of("TORCHELASTIC_RUN_ID");
  const bool here = options.address == "127.0.0.1" || options.address == "localhost" || options.address == "::1";
  if (options.size > 1 && !here && token.empty() && run_id.empty())
    throw Error(ErrorCode::usage,
                "MASTER_ADDR is '" + options.address +
                    "', which other hosts can reach: a shared secret is required; set DP_TOKEN to the "
                    "same text for every rank");
  options.token = token.empty() ? run_id : token;
  if (!value_of("DP_LISTENER").empty() && options.rank == 0) options.listener = number_in("DP_LISTENER", 0, 1 << 20);
  return options;
}

}  // namespace dp
