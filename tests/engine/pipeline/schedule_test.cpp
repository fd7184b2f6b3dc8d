#include "engine/step/pipeline/schedule.h"

#include <algorithm>
#include <set>

#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::engine;
using enum PipelineSchedule;

constexpr PipelineSchedule kAll[] = {one_at_a_time, gpipe, one_f_one_b, zero_bubble};
constexpr StageSeconds kEqual{1, 1, 1};

// Calls check(schedule, stages P, micro-batches M) for every schedule, P up to 8 and M up to 33.
template <class Check>
void for_all(const Check& check) {
  for (const PipelineSchedule schedule : kAll)
    for (int stages = 1; stages <= 8; ++stages)
      for (int micros = 1; micros <= 33; ++micros) {
        INFO("schedule " << static_cast<int>(schedule) << ", " << stages << " stages, " << micros << " micro-batches");
        check(schedule, stages, micros);
      }
}

// The index of an action, or -1.
int index_of(const std::vector<Action>& actions, Work work, int micro) {
  const auto at = std::find(actions.begin(), actions.end(), Action{work, micro});
  return at == actions.end() ? -1 : static_cast<int>(at - actions.begin());
}

// The micro-batches of some kinds of work, in the order of the actions.
std::vector<int> order_of(const std::vector<Action>& actions, std::set<Work> kinds) {
  std::vector<int> micros;
  for (const Action& action : actions)
    if (kinds.contains(action.work)) micros.push_back(action.item);
  return micros;
}

double seconds(PipelineSchedule schedule, int stages, int micros) {
  return simulate(schedule, std::vector<StageSeconds>(static_cast<std::size_t>(stages), kEqual), micros, 0).seconds;
}

}  // namespace

TEST_CASE("pipeline: every stage runs each action of each micro-batch once, after those that it depends on") {
  for_all([](PipelineSchedule schedule, int stages, int micros) {
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<Action> actions = actions_of(schedule, stage, stages, micros);
      const bool split = schedule == zero_bubble;
      REQUIRE(actions.size() == static_cast<std::size_t>(micros) * (split ? 3 : 2));
      for (int micro = 0; micro < micros; ++micro) {
        const int forward = index_of(actions, Work::forward, micro);
        const int backward = index_of(actions, split ? Work::input_gradient : Work::backward, micro);
        REQUIRE(forward >= 0);
        REQUIRE(backward > forward);
        if (split) REQUIRE(index_of(actions, Work::weight_gradient, micro) > backward);
      }
    }
  });
}

TEST_CASE("pipeline: actions of one kind run in micro-batch order") {
  for_all([](PipelineSchedule schedule, int stages, int micros) {
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<Action> actions = actions_of(schedule, stage, stages, micros);
      for (const std::set<Work>& kinds :
           {std::set{Work::forward}, std::set{Work::backward, Work::input_gradient}, std::set{Work::weight_gradient}}) {
        const std::vector<int> micros_in_order = order_of(actions, kinds);
        REQUIRE(std::is_sorted(micros_in_order.begin(), micros_in_order.end()));
      }
    }
  });
}

TEST_CASE("pipeline: the micro-batches in flight are those that the documentation states") {
  for_all([](PipelineSchedule schedule, int stages, int micros) {
    for (int stage = 0; stage < stages; ++stage) {
      const InFlight most = most_in_flight(actions_of(schedule, stage, stages, micros));
      if (schedule == one_at_a_time) REQUIRE(most.activations == 1);
      if (schedule == gpipe) REQUIRE(most.activations == micros);
      if (schedule == one_f_one_b || schedule == zero_bubble)
        REQUIRE(most.activations == std::min(micros, stages - stage));
      REQUIRE(most.weight_gradients == (schedule == zero_bubble ? std::min(micros, stage + 1) : 0));
      REQUIRE(most.items == (schedule == zero_bubble ? std::min(micros, stages) : most.activations));
    }
  });
}

TEST_CASE("pipeline: with equal stages the time equals the formula, and no schedule deadlocks") {
  for_all([](PipelineSchedule schedule, int stages, int micros) {
    const double time = seconds(schedule, stages, micros);
    if (schedule == one_at_a_time) REQUIRE(time == 3 * micros * stages);
    if (schedule == gpipe || schedule == one_f_one_b) REQUIRE(time == 3 * (micros + stages - 1));
    if (schedule == zero_bubble && micros >= stages) REQUIRE(time == 3 * micros + stages - 1);
    if (schedule == zero_bubble) REQUIRE(time <= seconds(one_f_one_b, stages, micros));
  });
}

TEST_CASE("pipeline: the bubble equals the published formula") {
  const auto bubble = [](PipelineSchedule schedule, std::size_t stages, int micros) {
    return simulate(schedule, std::vector<StageSeconds>(stages, kEqual), micros, 0).bubble;
  };
  CHECK(bubble(one_f_one_b, 4, 8) == Approx(3.0 / 11));
  CHECK(bubble(gpipe, 8, 32) == Approx(7.0 / 39));
  CHECK(bubble(zero_bubble, 4, 8) == Approx(3.0 / 27));
  CHECK(bubble(one_at_a_time, 4, 8) == Approx(0.75));
  CHECK(bubble(gpipe, 1, 3) == Approx(0).margin(1e-12));
}

TEST_CASE("pipeline: the simulation includes transfer times and unequal stages") {
  // First stage: forward 0 to 1 and 1 to 2, backward 10 to 12 and 14 to 16.
  // Last stage: forward 1.5 to 3.5 and 3.5 to 5.5, backward 5.5 to 9.5 and 9.5 to 13.5.
  const std::vector<StageSeconds> stages{{1, 1, 1}, {2, 2, 2}};
  const SimulatedPipeline result = simulate(gpipe, stages, 2, 0.5);
  CHECK(result.seconds == 16);
  CHECK(result.bubble == Approx(1 - 18.0 / 32));
  CHECK(result.finished == std::vector{16.0, 13.5});
  // No schedule is faster than the slowest stage alone.
  for (const PipelineSchedule schedule : kAll) CHECK(simulate(schedule, stages, 8, 0).seconds >= 8 * 6);
}

TEST_CASE("pipeline: the order of each schedule's work on three stages and four micro-batches") {
  const auto text_of = [](PipelineSchedule schedule, int stage) {
    std::string text;
    for (const Action& action : actions_of(schedule, stage, 3, 4))
      text += "FBIW"[static_cast<int>(action.work)] + std::to_string(action.item) + " ";
    return text;
  };
  for (const int stage : {0, 1, 2}) {
    CHECK(text_of(one_at_a_time, stage) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
    CHECK(text_of(gpipe, stage) == "F0 F1 F2 F3 B0 B1 B2 B3 ");
  }
  CHECK(text_of(one_f_one_b, 0) == "F0 F1 F2 B0 F3 B1 B2 B3 ");
  CHECK(text_of(one_f_one_b, 1) == "F0 F1 B0 F2 B1 F3 B2 B3 ");
  CHECK(text_of(one_f_one_b, 2) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
  CHECK(text_of(zero_bubble, 0) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ");
  CHECK(text_of(zero_bubble, 1) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 ");
  CHECK(text_of(zero_bubble, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 ");
}
