// A model on one device: with a pipeline, one stage of a replica. A Worker trains it.
#pragma once

#include <memory>
#include <optional>

#include "engine/step/plan_runner.h"

namespace dp::engine {

// Used only by its worker thread.
class Replica {
 public:
  // The model, the table and the norms must outlive this object.
  Replica(const Model& model, std::unique_ptr<kernels::Context> context, const ParameterTable& table,
          const NormTable& norms, const ReplicaOptions& replica_options)
      : options(replica_options),
        device(std::move(context)),
        feed(device.context().host_accessible() ? nullptr
                                                : std::make_unique<InputFeed>(device.context(), device.compute())),
        clock(device, feed.get()),
        arenas(device, table, norms, options),
        runner(model, norms, options, device, arenas, clock, feed.get()) {}

  int rank() const { return options.rank; }
  int stage() const { return options.stage; }
  int local_shards() const { return options.local_shards; }
  kernels::Context& context() const { return device.context(); }
  kernels::Stream& compute() const { return device.compute(); }

  const ReplicaOptions options;
  std::unique_ptr<Tracer> tracer;  // null without tracing; outlives the streams that write to it
  OpenDevice device;
  const std::unique_ptr<InputFeed> feed;  // null if the device reads host memory
  StepClock clock;
  Arenas arenas;
  PlanRunner runner;
};

}  // namespace dp::engine
