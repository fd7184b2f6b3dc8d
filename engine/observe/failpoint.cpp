#include "engine/observe/failpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <thread>

#include "dp/error.h"
#include "engine/base/test_modes.h"
#include "kernels/comm/communicator.h"

namespace dp::engine {
namespace {

template <typename T>
T number(std::string_view text, std::string_view clause) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw Error(ErrorCode::usage, fmt::format("DP_FAIL: '{}' in '{}' is not a number", text, clause));
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

struct NamedAction {
  std::string_view name;
  FailAction action;
  int signal = 0;
};
constexpr NamedAction kActions[] = {{"throw", FailAction::raise},
                                    {"stall", FailAction::stall},
                                    {"fail", FailAction::call},
                                    {"nan", FailAction::nan},
                                    {"segv", FailAction::signal, SIGSEGV},
                                    {"abort", FailAction::signal, SIGABRT},
                                    {"kill", FailAction::signal, SIGKILL}};
constexpr std::string_view kCalls[] = {"alloc", "file", "thread", "peer", "collective", "cuda", "nccl"};

// "fail:file:3": a kind of call and its number.
void parse_call(Failpoint& point, std::span<const std::string_view> parts, std::string_view clause) {
  const auto kind = std::ranges::find(kCalls, parts[1]);
  if (kind == std::end(kCalls) || parts.size() < 3)
    throw Error(ErrorCode::usage, fmt::format("DP_FAIL: '{}' is not fail:KIND:N[:devN][:startN] with a KIND of {}",
                                              clause, fmt::join(kCalls, ", ")));
  point.kind = *kind;
  point.number = number<std::int64_t>(parts[2], clause);
}

Phase parse_phase(std::string_view name) {
  const auto phase = std::find(kPhaseNames.begin(), kPhaseNames.end(), name);
  if (phase == kPhaseNames.end())
    throw Error(ErrorCode::usage, fmt::format("DP_FAIL: '{}' is not one of {}", name, fmt::join(kPhaseNames, ", ")));
  return static_cast<Phase>(phase - kPhaseNames.begin());
}

Failpoint parse_clause(std::string_view clause) {
  Failpoint point;
  const std::vector<std::string_view> parts = split(clause, ':');
  if (parts.size() < 2)
    throw Error(
        ErrorCode::usage,
        fmt::format("DP_FAIL: '{}' is not action:phase[:devN][:stageN][:microN][:stepN][:startN][:Nms]", clause));
  const auto action = std::ranges::find(kActions, parts[0], &NamedAction::name);
  if (action == std::end(kActions))
    throw Error(ErrorCode::usage,
                fmt::format("DP_FAIL: '{}' is not throw, stall, fail, nan, segv, abort or kill", parts[0]));
  point.action = action->action;
  point.signal = action->signal;
  const bool calls = point.action == FailAction::call;
  if (calls)
    parse_call(point, parts, clause);
  else
    point.phase = parse_phase(parts[1]);
  const bool plants = point.phase == Phase::forward || point.phase == Phase::backward || point.phase == Phase::reduce ||
                      point.phase == Phase::update;
  if (point.action == FailAction::nan && !plants)
    throw Error(ErrorCode::usage,
                fmt::format("DP_FAIL: '{}' has no effect; nan applies to forward, backward, reduce or update", clause));
  for (std::size_t i = calls ? 3 : 2; i < parts.size(); ++i) {
    if (parts[i].starts_with("dev"))
      point.replica = number<int>(parts[i].substr(3), clause);
    else if (calls && !parts[i].starts_with("start"))
      throw Error(ErrorCode::usage, fmt::format("DP_FAIL: '{}' in '{}' is not devN or startN", parts[i], clause));
    else if (parts[i].starts_with("stage"))
      point.stage = number<int>(parts[i].substr(5), clause);
    else if (parts[i].starts_with("micro"))
      point.micro_batch = number<int>(parts[i].substr(5), clause);
    else if (parts[i].starts_with("start"))
      point.start = number<int>(parts[i].substr(5), clause);
    else if (parts[i].starts_with("step"))
      point.step = number<std::int64_t>(parts[i].substr(4), clause);
    else if (parts[i].ends_with("ms") && point.action == FailAction::stall)
      point.stall_ms = number<int>(parts[i].substr(0, parts[i].size() - 2), clause);
    else
      throw Error(ErrorCode::usage,
                  fmt::format("DP_FAIL: '{}' in '{}' is not devN, stageN, microN, stepN, startN or, for a stall, Nms",
                              parts[i], clause));
  }
  return point;
}

}  // namespace

std::vector<Failpoint> parse_failpoints(std::string_view text) {
  std::vector<Failpoint> points;
  if (text.empty()) return points;
  for (const std::string_view clause : split(text, ',')) points.push_back(parse_clause(clause));
  return points;
}

std::vector<Failpoint> failpoints_from_environment() {
  const char* const text = std::getenv("DP_FAIL");
  const char* const restarts = std::getenv("DP_RESTARTS");
  std::vector<Failpoint> points = parse_failpoints(text ? text : "");
  const int start = restarts ? std::atoi(restarts) : 0;
  std::erase_if(points, [&](const Failpoint& point) { return point.start >= 0 && point.start != start; });
  return points;
}

namespace {

std::atomic<int> stalls{0};

const char* gate() { return std::getenv("DP_FAIL_GATE"); }

// If DP_FAIL_GATE is set: creates <gate>.<replica> at the start, and returns early once that file is removed or
// <gate>.open exists.
void stall(std::chrono::milliseconds time, int replica) {
  const char* const path = gate();
  if (path == nullptr) return test_modes().time->sleep(time);
  const auto end = std::chrono::steady_clock::now() + time;
  const std::string begun = std::string(path) + "." + std::to_string(replica), opened = std::string(path) + ".open";
  const bool marked = std::ofstream(begun).is_open();
  stalls.fetch_add(1);
  while (std::chrono::steady_clock::now() < end && !std::filesystem::exists(opened) &&
         !(marked && !std::filesystem::exists(begun)))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  stalls.fetch_sub(1);
}

}  // namespace

bool stalls_are_gated() { return gate() != nullptr; }
int gated_stalls() { return stalls.load(); }

Failpoints::Failpoints() : points_(failpoints_from_environment()) {
  std::erase_if(points_, [](const Failpoint& point) {
    if (point.kind == "collective")
      kernels::failing_call.rank = point.replica, kernels::failing_call.left = point.number;
    return point.action == FailAction::call;
  });
}

bool Failpoints::hit_slowly(const StepPlace& place) const {
  const auto matches = [](std::int64_t wanted, std::int64_t actual) { return wanted < 0 || wanted == actual; };
  bool nan = false;
  for (const Failpoint& point : points_) {
    if (point.phase != place.phase || !matches(point.replica, place.replica) || !matches(point.step, place.step) ||
        !matches(point.stage, place.stage) || !matches(point.micro_batch, place.micro_batch))
      continue;
    if (point.action == FailAction::raise) throw std::runtime_error("failure injected by DP_FAIL");
    if (point.action == FailAction::signal) std::raise(point.signal);
    if (point.action == FailAction::stall) stall(std::chrono::milliseconds(point.stall_ms), place.replica);
    nan = nan || point.action == FailAction::nan;
  }
  return nan;
}

}  // namespace dp::engine
