// How a tensor lies in memory. Only the backend that made a layout can read it; everyone else compares
// layouts and asks for their size.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "dp/shape.h"

namespace dp::kernels {

struct Layout {
  std::string name;       // unique for a memory order of a shape and type; empty: the backend may choose
  std::size_t bytes = 0;  // with padding
  std::shared_ptr<const void> native;

  bool any() const { return name.empty(); }
  friend bool operator==(const Layout& a, const Layout& b) { return a.name == b.name && a.bytes == b.bytes; }
};

struct TensorDesc {
  Shape shape;  // with the batch dimension
  DType type = DType::f32;
  Layout layout;  // any() in a request; resolved in an op's answer
};

}  // namespace dp::kernels
