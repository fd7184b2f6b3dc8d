// Kinds of losses of outputs.
#pragma once

#include <variant>

#include "dp/loss_functions.h"

namespace dp {

// Whether the outputs are logits of classes that do not exclude each other. Targets are then between 0 and 1.
inline bool is_of_classes(const OutputLoss& loss) {
  return std::holds_alternative<BceWithLogitsLoss>(loss) || std::holds_alternative<FocalLoss>(loss);
}

// Whether the outputs are logits of classes of which a sample has one, or a distribution over them.
inline bool is_of_one_class(const OutputLoss& loss) { return std::holds_alternative<SoftCrossEntropyLoss>(loss); }

}  // namespace dp
