// The order of work in a pipeline of stages: data, without threads. A stage holds consecutive layers on one device. A
// batch is cut into micro-batches, which pass forward through the stages in order, and backward in reverse order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dp::engine {

// Bubble: the idle share of device time with P stages, M micro-batches and equal times of all work.
//
// one_at_a_time  A micro-batch passes through all stages before the next one starts: only one stage works at a time.
// gpipe          All forward work, then all backward work: (P - 1) / (M + P - 1), keeps activations of M micro-batches.
//                Y. Huang et al., GPipe, 2019.
// one_f_one_b    After a warm-up, forward and backward work take turns: the same bubble, keeps min(M, P - stage).
//                D. Narayanan et al., PipeDream-Flush, 2021.
// zero_bubble    The same, but the gradients of weights, which no other stage waits for, are computed later:
//                (P - 1) / (3 M + P - 1) for M >= P. P. Qi et al., Zero Bubble Pipeline Parallelism (ZB-H1), 2023.
enum class PipelineSchedule : std::uint8_t { one_at_a_time, gpipe, one_f_one_b, zero_bubble };

enum class Work : std::uint8_t {
  forward,
  backward,        // the gradients of input and weights
  input_gradient,  // only zero_bubble has these two
  weight_gradient,
};

struct Action {
  Work work;
  int micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

// The work of a stage, in order. Gradients are added in the order of the micro-batches, whatever the schedule.
std::vector<Action> actions_of(PipelineSchedule schedule, int stage, int stages, int micro_batches);

// The largest number of micro-batches that hold memory at once: their activations from forward work until the gradient
// of the input is computed, and what the gradients of weights need from then until they are computed.
struct InFlight {
  int activations = 0;
  int weight_gradients = 0;
};
InFlight most_in_flight(std::span<const Action> actions);

// Seconds per micro-batch.
struct StageSeconds {
  double forward = 0, input_gradient = 0, weight_gradient = 0;
};
struct SimulatedPipeline {
  double seconds = 0;  // from the first work to the end of the last
  double bubble = 0;   // idle share of the stages' time, from 0 to 1
};

// Runs a schedule in a model of the stages: each does its work in order, as soon as what it waits for has arrived,
// `hand_over` seconds after it was computed. std::logic_error if stages wait for each other.
SimulatedPipeline simulate(PipelineSchedule schedule, std::span<const StageSeconds> stages, int micro_batches,
                           double hand_over);

}  // namespace dp::engine
