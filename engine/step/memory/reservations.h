// Memory for the kinds of batch that occur: whether it fits, and its allocation on all replicas before any of them
// enqueues a collective. An allocation may wait until all devices are idle. A collective that waits for the allocating
// thread would then never end.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/step/memory/memory_plan.h"
#include "engine/step/team.h"

namespace dp::engine {

class Reservations {
 public:
  explicit Reservations(Team& team) : team_(team), setup_(team.setup) {}

  // Before any replica exists. `context`: of the first one. Error(device) as require_room().
  void require_room_for_weights(const kernels::Context& context);
  // Error(device) with the bytes needed, the bytes free and what would fit, if a device has too little memory for these
  // batches and the state of `optimizer`, if any. Only certain allocations count, with their exact sizes
  // from the plans: a request that fits is never refused. `together`: all ranks make this call, and on CPUs the needs
  // of ranks on the same host are added.
  void require_room(const std::vector<BatchKind>& batches, const std::optional<Optimizer>& optimizer, bool together);
  void allocate(const std::vector<BatchKind>& batches);  // call require_room() first
  // Both, once per kind of batch. Does nothing for a single replica, which allocates when a batch is first used.
  void reserve(const BatchKind& batch);

 private:
  // Returns a text that says what fits into `room` bytes. The device has this number in this process, and `replicas`
  // share it.
  using FitsText = std::function<std::string(std::size_t device, std::size_t room, std::size_t replicas)>;

  // These two: Error(device). `needs`: bytes per replica of this process. The first compares them with replica_limit(),
  // the second also with the free memory.
  void require_within_limit(const std::vector<std::size_t>& needs, const std::string& what, const FitsText& fits) const;
  void require_fit(const std::vector<std::size_t>& needs, bool together, const std::string& what, const FitsText& fits);
  std::size_t occupied(std::size_t bytes) const;                  // bytes that a replica's buffer of this size occupies
  std::size_t added(std::size_t held, std::size_t needed) const;  // when a buffer of `held` bytes grows
  std::size_t missing_bytes(Worker& worker, const std::vector<BatchKind>& batches) const;
  std::size_t missing_bytes_in_links(std::size_t number, const BorderBytes& bytes) const;  // of worker `number`
  void allocate(Worker& worker, const BatchKind& batch);
  void allocate_links(Worker& worker, const Plan& plan);
  // Calls f(worker) on every worker, stage by stage: a stage's plans depend on those before it.
  template <typename F>
  void by_stage(F&& f);
  // Returns the options with PlanOptions::input set for the worker's stage.
  PlanOptions with_input(const Worker& worker, PlanOptions options) const;

  Team& team_;
  const ModelSetup& setup_;
  std::set<BatchKind> allocated_;
};

}  // namespace dp::engine
