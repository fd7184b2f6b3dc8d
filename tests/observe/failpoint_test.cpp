// The grammar of DP_FAIL, and where a failpoint fires.
#include "engine/observe/failpoint.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "dp/error.h"
#include "kernels/comm/communicator.h"
#include "support/catch.h"
#include "support/failing.h"

using namespace dp::engine;
using dp::test::FailEnvironment;

namespace {

void check_point(const std::string& text, const Failpoint& expected) {
  INFO(text);
  const std::vector<Failpoint> points = parse_failpoints(text);
  REQUIRE(points.size() == 1);
  CHECK(points[0].action == expected.action);
  CHECK(points[0].phase == expected.phase);
  CHECK(points[0].replica == expected.replica);
  CHECK(points[0].stage == expected.stage);
  CHECK(points[0].micro_batch == expected.micro_batch);
  CHECK(points[0].step == expected.step);
  CHECK(points[0].stall_ms == expected.stall_ms);
  CHECK(points[0].signal == expected.signal);
  CHECK(points[0].start == expected.start);
  CHECK(points[0].kind == expected.kind);
  CHECK(points[0].number == expected.number);
}

std::string refusal(const std::string& text) {
  try {
    parse_failpoints(text);
  } catch (const dp::Error& error) {
    CHECK(error.code() == dp::ErrorCode::usage);
    return error.what();
  }
  return "accepted";
}

bool throws(const Failpoints& points, const StepPlace& place) {
  try {
    points.hit(place);
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()) == "failure injected by DP_FAIL");
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("failpoints: each part of a clause sets its field, and an omitted one matches everything") {
  check_point("throw:scatter", {.action = FailAction::raise, .phase = Phase::scatter});
  check_point("throw:loss:dev0", {.action = FailAction::raise, .phase = Phase::loss, .replica = 0});
  check_point("throw:broadcast:stage0", {.action = FailAction::raise, .phase = Phase::broadcast, .stage = 0});
  check_point("stall:update:micro0", {.action = FailAction::stall, .phase = Phase::update, .micro_batch = 0});
  check_point("stall:forward:step0", {.action = FailAction::stall, .phase = Phase::forward, .step = 0});
  check_point("stall:reduce:0ms", {.action = FailAction::stall, .phase = Phase::reduce, .stall_ms = 0});
  check_point("stall:backward:step5000000000:dev12:stage34:micro56:789ms", {.action = FailAction::stall,
                                                                            .phase = Phase::backward,
                                                                            .replica = 12,
                                                                            .stage = 34,
                                                                            .micro_batch = 56,
                                                                            .step = 5000000000,
                                                                            .stall_ms = 789});
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::reduce, Phase::update})
    check_point(std::string("nan:") + to_string(phase) + ":dev1",
                {.action = FailAction::nan, .phase = phase, .replica = 1});
  for (const auto& [name, signal] : {std::pair("segv", SIGSEGV), {"abort", SIGABRT}, {"kill", SIGKILL}})
    check_point(name + std::string(":update:start7"),
                {.action = FailAction::signal, .phase = Phase::update, .signal = signal, .start = 7});
  check_point("fail:file:12", {.action = FailAction::call, .kind = "file", .number = 12});
  for (const std::string kind : {"alloc", "thread", "peer", "collective", "cuda", "nccl"})
    check_point("fail:" + kind + ":5000000000:start2:dev1",
                {.action = FailAction::call, .replica = 1, .kind = kind, .number = 5000000000, .start = 2});
  CHECK(parse_failpoints("throw:loss,nan:reduce,stall:loss:1ms").size() == 3);
}

TEST_CASE("failpoints: the error quotes the faulty part and its clause") {
  CHECK(refusal("throw:loss,stall") ==
        "DP_FAIL: 'stall' is not action:phase[:devN][:stageN][:microN][:stepN][:startN][:Nms]");
  CHECK(refusal("break:loss") == "DP_FAIL: 'break' is not throw, stall, fail, nan, segv, abort or kill");
  for (const std::string clause : {"fail:loss:1", "fail:file"})
    CHECK(refusal(clause) == "DP_FAIL: '" + clause +
                                 "' is not fail:KIND:N[:devN][:startN] with a KIND of alloc, file, thread, peer, "
                                 "collective, cuda, nccl");
  CHECK(refusal("fail:file:x") == "DP_FAIL: 'x' in 'fail:file:x' is not a number");
  CHECK(refusal("fail:file:1:step1") == "DP_FAIL: 'step1' in 'fail:file:1:step1' is not devN or startN");
  CHECK(refusal("throw:start") ==
        "DP_FAIL: 'start' is not one of scatter, forward, loss, backward, reduce, update, broadcast");
  for (const std::string phase : {"scatter", "loss", "broadcast"})
    CHECK(refusal("nan:" + phase + ":dev1") ==
          "DP_FAIL: 'nan:" + phase + ":dev1' has no effect; nan applies to forward, backward, reduce or update");
  for (const std::string number : {"", "-1", "x", "1x", " 1", "99999999999999999999"})
    for (const std::string part : {"dev", "stage", "micro", "step", "start"}) {
      const std::string clause = "throw:loss:" + part + number;
      CHECK(refusal(clause) == "DP_FAIL: '" + number + "' in '" + clause + "' is not a number");
    }
  CHECK(refusal("throw:loss:dev2147483648") == "DP_FAIL: '2147483648' in 'throw:loss:dev2147483648' is not a number");
  CHECK(refusal("stall:loss:xms") == "DP_FAIL: 'x' in 'stall:loss:xms' is not a number");
  for (const std::string part : {"5ms", "7", "", "rank1"})
    CHECK(refusal("throw:loss:" + part) == "DP_FAIL: '" + part + "' in 'throw:loss:" + part +
                                               "' is not devN, stageN, microN, stepN, startN or, for a stall, Nms");
}

TEST_CASE("failpoints: a clause fires only where all of its parts fit") {
  const StepPlace here{.phase = Phase::backward, .replica = 1, .step = 2, .stage = 3, .micro_batch = 4};
  {
    const FailEnvironment fail("throw:backward:dev1:step2:stage3:micro4");
    const Failpoints points;
    CHECK_FALSE(points.empty());
    CHECK(throws(points, here));
    for (const StepPlace& other : {StepPlace{Phase::forward, 1, 2, 3, 4}, StepPlace{Phase::backward, 0, 2, 3, 4},
                                   StepPlace{Phase::backward, 1, 3, 3, 4}, StepPlace{Phase::backward, 1, 2, 2, 4},
                                   StepPlace{Phase::backward, 1, 2, 3, 5}}) {
      CHECK_FALSE(throws(points, other));
      CHECK_FALSE(points.hit(other));
    }
  }
  {
    const FailEnvironment fail("throw:backward");
    CHECK(throws(Failpoints(), here));
    CHECK(throws(Failpoints(), {.phase = Phase::backward}));
  }
  const Failpoints none;  // DP_FAIL is not set
  CHECK(none.empty());
  CHECK_FALSE(none.hit(here));
}

TEST_CASE("failpoints: a clause with a start fires after that many restarts only") {
  const FailEnvironment fail("throw:loss:start0,throw:forward:start2");
  const StepPlace loss{.phase = Phase::loss}, forward{.phase = Phase::forward};
  CHECK((throws(Failpoints(), loss) && !throws(Failpoints(), forward)));
  setenv("DP_RESTARTS", "2", 1);
  CHECK((!throws(Failpoints(), loss) && throws(Failpoints(), forward)));
  unsetenv("DP_RESTARTS");
}

TEST_CASE("failpoints: the N-th collective of a rank fails once, and other calls are counted elsewhere") {
  const FailEnvironment fail("fail:collective:2:dev1,fail:file:1");
  CHECK(Failpoints().empty());
  const auto fails = [](int rank) {
    try {
      dp::kernels::count_call(rank);
    } catch (const dp::Error& error) {
      CHECK(std::string(error.what()) == "a collective failed: failure injected by DP_FAIL");
      return true;
    }
    return false;
  };
  for (const int rank : {1, 0, 0, -1}) CHECK_FALSE(fails(rank));
  CHECK(fails(1));
  CHECK_FALSE(fails(1));
}

TEST_CASE("failpoints: only the action nan gives a NaN, and a stall has the given duration") {
  const FailEnvironment fail("nan:update:dev1,stall:update:60ms,stall:reduce:0ms");
  const Failpoints points;
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(points.hit({.phase = Phase::update, .replica = 0}));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(60));
  CHECK(points.hit({.phase = Phase::update, .replica = 1}));
  CHECK_FALSE(points.hit({.phase = Phase::reduce, .replica = 1}));
}
