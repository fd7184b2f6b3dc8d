#include "engine/step/pipeline/schedule.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dp::engine {
namespace {

// First `ahead` forward passes, then forward and backward passes alternate. Weight gradients are computed `delay`
// micro-batches after the input gradients; with -1, both are one action.
std::vector<Action> alternating(int micro_batches, int ahead, int delay) {
  std::vector<Action> actions;
  int forward = 0, weights = 0;
  const auto add = [&](Work work, int& next) { actions.push_back({work, next++}); };
  while (forward < std::min(ahead, micro_batches)) add(Work::forward, forward);
  for (int micro = 0; micro < micro_batches; ++micro) {
    if (forward < micro_batches) add(Work::forward, forward);
    actions.push_back({delay < 0 ? Work::backward : Work::input_gradient, micro});
    if (delay >= 0 && micro >= delay) add(Work::weight_gradient, weights);
  }
  while (delay >= 0 && weights < micro_batches) add(Work::weight_gradient, weights);
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

// The times at which a stage has finished each micro-batch.
struct Finished {
  std::vector<double> forward, backward;
};

}  // namespace

std::vector<Action> actions_of(PipelineSchedule schedule, int stage, int stages, int micro_batches) {
  switch (schedule) {
    case PipelineSchedule::one_at_a_time: return alternating(micro_batches, 0, -1);
    case PipelineSchedule::gpipe: return alternating(micro_batches, micro_batches, -1);
    case PipelineSchedule::one_f_one_b: return alternating(micro_batches, stages - 1 - stage, -1);
    // Later stages delay weight gradients more. Input gradients then reach the first stage sooner, and the delayed work
    // fills the idle time at the end.
    case PipelineSchedule::zero_bubble: return alternating(micro_batches, stages - 1 - stage, stage);
  }
  return {};
}

InFlight most_in_flight(std::span<const Action> actions) {
  InFlight most;
  int activations = 0, weight_gradients = 0, micro_batches = 0;
  for (const Action& action : actions) {
    activations += action.work == Work::forward;
    micro_batches += action.work == Work::forward;
    most.micro_batches = std::max(most.micro_batches, micro_batches);
    most.activations = std::max(most.activations, activations);
    weight_gradients += action.work == Work::input_gradient;
    most.weight_gradients = std::max(most.weight_gradients, weight_gradients);
    activations -= action.work == Work::backward || action.work == Work::input_gradient;
    weight_gradients -= action.work == Work::weight_gradient;
    micro_batches -= action.work == Work::backward || action.work == Work::weight_gradient;
  }
  return most;
}

SimulatedPipeline simulate(PipelineSchedule schedule, std::span<const StageSeconds> stages, int micro_batches,
                           double hand_over) {
  const std::size_t count = stages.size(), micros = static_cast<std::size_t>(micro_batches);
  std::vector<std::vector<Action>> actions;
  for (std::size_t s = 0; s < count; ++s)
    actions.push_back(actions_of(schedule, static_cast<int>(s), static_cast<int>(count), micro_batches));
  std::vector<Finished> finished(count, {std::vector(micros, kNotYet), std::vector(micros, kNotYet)});
  std::vector<double> now(count);
  std::vector<std::size_t> next(count);

  // The time at which the action's input arrives from the neighbouring stage.
  const auto arrival = [&](std::size_t stage, const Action& action) {
    const auto micro = static_cast<std::size_t>(action.micro_batch);
    if (action.work == Work::forward) return stage == 0 ? 0 : finished[stage - 1].forward[micro] + hand_over;
    if (action.work == Work::weight_gradient || stage + 1 == count) return 0.0;
    return finished[stage + 1].backward[micro] + hand_over;
  };
  const auto run = [&](std::size_t stage) {
    bool moved = false;
    for (; next[stage] < actions[stage].size(); ++next[stage], moved = true) {
      const Action& action = actions[stage][next[stage]];
      const double arrives = arrival(stage, action);
      if (arrives == kNotYet) break;
      now[stage] = std::max(now[stage], arrives) + seconds_of(action.work, stages[stage]);
      const auto micro = static_cast<std::size_t>(action.micro_batch);
      if (action.work == Work::forward) finished[stage].forward[micro] = now[stage];
      if (action.work == Work::backward || action.work == Work::input_gradient)
        finished[stage].backward[micro] = now[stage];
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
    busy += micro_batches * (stages[stage].forward + stages[stage].input_gradient + stages[stage].weight_gradient);
  }
  result.bubble = 1 - busy / (result.seconds * static_cast<double>(count));
  result.finished = std::move(now);
  return result;
}

}  // namespace dp::engine
