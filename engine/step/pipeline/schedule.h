// Pipeline schedules: the order of each stage's work. A stage holds consecutive layers on one device. A batch is split
// into items, which pass forward through the stages in order, and backward in reverse order. The papers below call them
// micro-batches; with several shards per replica, an item is one shard of a micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dp/parallel_options.h"

namespace dp::engine {

// The schedules. The bubble is the idle share of device time. The formulas are for P stages and M items, with equal
// times of forward work, input gradients and weight gradients in all stages.
//
// one_at_a_time  An item passes through all stages before the next one starts. Bubble (P - 1) / P.
// gpipe          All forward work, then all backward work. Bubble (P - 1) / (M + P - 1). A stage saves the activations
//                of M items. Y. Huang et al., GPipe, 2019.
// one_f_one_b    After a warm-up, forward and backward work alternate. The bubble is gpipe's. A stage saves the
//                activations of min(M, P - stage) items. D. Narayanan et al., PipeDream-Flush, 2021.
// zero_bubble    As one_f_one_b, but weight gradients are computed later, because no other stage waits for them.
//                Bubble (P - 1) / (3 M + P - 1) for M >= P.
//                P. Qi et al., Zero Bubble Pipeline Parallelism (ZB-H1), 2023.

enum class Work : std::uint8_t {
  forward,
  backward,        // input gradient and weight gradients
  input_gradient,  // zero_bubble computes these two separately
  weight_gradient,
};

struct Action {
  Work work;
  int item;
  friend bool operator==(const Action&, const Action&) = default;
};

// The actions of a stage, in order. Every schedule adds gradients in the order of the items.
std::vector<Action> actions_of(PipelineSchedule schedule, int stage, int stages, int items);

// The largest number of items whose tensors a stage must save at the same time.
struct InFlight {
  int activations = 0;       // from forward work to the input gradient
  int weight_gradients = 0;  // from the input gradient to the weight gradients
  int items = 0;             // from forward work to the last backward work
};
InFlight most_in_flight(std::span<const Action> actions);

// Seconds per item.
struct StageSeconds {
  double forward = 0, input_gradient = 0, weight_gradient = 0;
};
struct SimulatedPipeline {
  double seconds = 0;              // from the start of the first action to the end of the last
  double bubble = 0;               // idle share of the stages' time, from 0 to 1
  std::vector<double> finished{};  // when each stage ends its last action
};

// Simulates a schedule. A stage starts its next action when the input has arrived. A transfer between stages takes
// `hand_over` seconds. Throws std::logic_error if the schedule deadlocks.
SimulatedPipeline simulate(PipelineSchedule schedule, std::span<const StageSeconds> stages, int items,
                           double hand_over);

}  // namespace dp::engine
