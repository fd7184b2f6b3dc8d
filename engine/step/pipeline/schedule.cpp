#include "engine/step/pipeline/schedule.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dp::engine {
namespace {

// First `ahead` forward passes, then forward and backward passes alternate. Weight gradients are computed `delay`
// items after the input gradients; with -1, both are one action.
std::vector<Action> alternating(int items, int ahead, int delay) {
  std::vector<Action> actions;
  int forward = 0, weights = 0;
  const auto add = [&](Work work, int& next) { actions.push_back({work, next++}); };
  while (forward < std::min(ahead, items)) add(Work::forward, forward);
  for (int item = 0; item < items; ++item) {
    if (forward < items) add(Work::forward, forward);
    actions.push_back({delay < 0 ? Work::backward : Work::input_gradient, item});
    if (delay >= 0 && item >= delay) add(Work::weight_gradient, weights);
  }
  while (delay >= 0 && weights < items) add(Work::weight_gradient, weights);
  return actions;
}

double seconds_of(Work work, const StageSeconds& stage) {
  switch (work) {
    case Work::forward: return stage.forward;
    case Work::backward: return stage.input_gradient + stage.weight_gradient;
    case Work::input_gradient: return stage.input_gradient;
    case Work::weight_gradient: return stage.weight_gradient;
  }
  return 0;
}

constexpr double kNotYet = std::numeric_limits<double>::infinity();

// The times at which a stage has finished each item.
struct Finished {
  std::vector<double> forward, backward;
};

}  // namespace

std::vector<Action> actions_of(PipelineSchedule schedule, int stage, int stages, int items) {
  switch (schedule) {
    case PipelineSchedule::one_at_a_time: return alternating(items, 0, -1);
    case PipelineSchedule::gpipe: return alternating(items, items, -1);
    case PipelineSchedule::one_f_one_b: return alternating(items, stages - 1 - stage, -1);
    // Later stages delay weight gradients more. Input gradients then reach the first stage sooner, and the delayed work
    // fills the idle time at the end.
    case PipelineSchedule::zero_bubble: return alternating(items, stages - 1 - stage, stage);
  }
  return {};
}

InFlight most_in_flight(std::span<const Action> actions) {
  InFlight most;
  int activations = 0, weight_gradients = 0, items = 0;
  for (const Action& action : actions) {
    activations += action.work == Work::forward;
    items += action.work == Work::forward;
    most.items = std::max(most.items, items);
    most.activations = std::max(most.activations, activations);
    weight_gradients += action.work == Work::input_gradient;
    most.weight_gradients = std::max(most.weight_gradients, weight_gradients);
    activations -= action.work == Work::backward || action.work == Work::input_gradient;
    weight_gradients -= action.work == Work::weight_gradient;
    items -= action.work == Work::backward || action.work == Work::weight_gradient;
  }
  return most;
}

SimulatedPipeline simulate(PipelineSchedule schedule, std::span<const StageSeconds> stages, int items,
                           double hand_over) {
  const std::size_t count = stages.size(), item_count = static_cast<std::size_t>(items);
  std::vector<std::vector<Action>> actions;
  for (std::size_t s = 0; s < count; ++s)
    actions.push_back(actions_of(schedule, static_cast<int>(s), static_cast<int>(count), items));
  std::vector<Finished> finished(count, {std::vector(item_count, kNotYet), std::vector(item_count, kNotYet)});
  std::vector<double> now(count);
  std::vector<std::size_t> next(count);

  // The time at which the action's input arrives from the neighbouring stage.
  const auto arrival = [&](std::size_t stage, const Action& action) {
    const auto item = static_cast<std::size_t>(action.item);
    if (action.work == Work::forward) return stage == 0 ? 0 : finished[stage - 1].forward[item] + hand_over;
    if (action.work == Work::weight_gradient || stage + 1 == count) return 0.0;
    return finished[stage + 1].backward[item] + hand_over;
  };
  const auto run = [&](std::size_t stage) {
    bool moved = false;
    for (; next[stage] < actions[stage].size(); ++next[stage], moved = true) {
      const Action& action = actions[stage][next[stage]];
      const double arrives = arrival(stage, action);
      if (arrives == kNotYet) break;
      now[stage] = std::max(now[stage], arrives) + seconds_of(action.work, stages[stage]);
      const auto item = static_cast<std::size_t>(action.item);
      if (action.work == Work::forward) finished[stage].forward[item] = now[stage];
      if (action.work == Work::backward || action.work == Work::input_gradient)
        finished[stage].backward[item] = now[stage];
    }
    return moved;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < count; ++stage) moved = run(stage) || moved;
  }

  SimulatedPipeline result;
  double busy = 0;
  for (std::size_t stage = 0; stage < count; ++stage) {
    if (next[stage] != actions[stage].size()) throw std::logic_error("the pipeline schedule deadlocks");
    result.seconds = std::max(result.seconds, now[stage]);
    busy += items * (stages[stage].forward + stages[stage].input_gradient + stages[stage].weight_gradient);
  }
  result.bubble = 1 - busy / (result.seconds * static_cast<double>(count));
  result.finished = std::move(now);
  return result;
}

}  // namespace dp::engine
