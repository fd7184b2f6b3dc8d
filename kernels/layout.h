// Memory layout of a tensor. Only the backend that made a layout can interpret it. Other code compares layouts and
// reads their size.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "dp/shape.h"

namespace dp::kernels {

// A backend's own description of a layout.
struct NativeLayout {
  virtual ~NativeLayout() = default;
};

struct Layout {
  std::string name;       // unique per memory order, shape and type; empty: the backend may choose
  std::size_t bytes = 0;  // padding included
  std::shared_ptr<const NativeLayout> native;

  bool any() const { return name.empty(); }
  friend bool operator==(const Layout& a, const Layout& b) { return a.name == b.name && a.bytes == b.bytes; }
};

struct TensorDesc {
  Shape shape;  // batch dimension included
  DType type = DType::f32;
  Layout layout;  // any() in a request; resolved in Op::tensors()
};

}  // namespace dp::kernels
