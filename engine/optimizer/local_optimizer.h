// The optimizer on one replica: it updates this replica's parts of the arenas and holds their state. A part is what the
// replica updates of one bucket; it may be empty.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/optimizer/optimizer.h"
#include "engine/optimizer/parameter_groups.h"
#include "engine/replica/replica.h"

namespace dp::engine {

class LocalOptimizer {
 public:
  struct Part {
    kernels::Range range;     // elements of the arenas
    std::int64_t offset = 0;  // element offset of the range in each state tensor
  };

  // `parts`: beginning at multiples of kGroupElements.
  LocalOptimizer(Replica& replica, const std::vector<kernels::Range>& parts, const ParameterGroups& groups);

  const std::vector<Part>& parts() const { return parts_; }
  kernels::UpdateRule rule() const { return rule_; }
  // The state of `part` in slot `slot`; null if the state was never allocated.
  std::byte* state(std::size_t slot, const Part& part);
  // Bytes of the state of a replica that updates `elements` elements of this size.
  static std::size_t state_bytes(const UpdateKind& kind, std::int64_t elements, std::size_t element_bytes) {
    return kind.state ? static_cast<std::size_t>(kernels::slots_of(kind.rule) * elements) * element_bytes : 0;
  }
  // Bytes of the state now, and after ensure_state().
  std::size_t held_bytes() const { return state_ ? state_->bytes() : 0; }
  std::size_t bytes_for(const UpdateKind& kind) const;
  // Allocates the state of this kind, all zeros, unless it exists. Frees the state of another rule; the device must
  // then be idle.
  void ensure_state(const UpdateKind& kind);

  // Sets the kind of the next updates. With state: requires ensure_state().
  void use(const UpdateKind& kind);
  // Enqueues. Sets the reduced gradients of frozen parameters to zero.
  void clear_frozen(std::size_t part, kernels::Stream& stream);
  void update(std::size_t part, kernels::Stream& stream);

 private:
  struct Frozen {
    std::int64_t begin = 0;  // element
    std::unique_ptr<kernels::Op> clear;
  };
  std::byte* gradient(std::int64_t element) {
    return replica_.gradients() + static_cast<std::size_t>(element) * element_;
  }

  Replica& replica_;
  const std::size_t element_;  // bytes
  std::vector<Part> parts_;
  std::vector<std::vector<Frozen>> frozen_;  // per part
  std::unique_ptr<kernels::Buffer> groups_;  // ParameterGroups::map(); null without groups
  kernels::UpdateRule rule_ = kernels::UpdateRule::sgd;
  std::vector<std::unique_ptr<kernels::Op>> ops_;  // one per part; null if it is empty
  bool uses_state_ = false;
  std::unique_ptr<kernels::Buffer> state_;  // slot by slot
};

}  // namespace dp::engine
