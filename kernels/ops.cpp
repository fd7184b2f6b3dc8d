#include "kernels/ops.h"

namespace dp::kernels {
namespace {

template <typename Desc>
void add_shapes(std::string& text, const Desc& d) {
  const auto add = [&](const char* name, const TensorDesc& t) {
    text += std::string(" ") + name + " " + to_string(t.shape);
  };
  if constexpr (requires { d.linear; }) add_shapes(text, d.linear);
  if constexpr (requires { d.conv; }) add_shapes(text, d.conv);
  if constexpr (requires { d.weights; }) add_shapes(text, d.weights);
  if constexpr (requires { d.data; }) add_shapes(text, d.data);
  if constexpr (requires { d.pool; }) add_shapes(text, d.pool);
  if constexpr (requires { d.x; }) add("x", d.x);
  if constexpr (requires { d.s; }) add("s", d.s);
  if constexpr (requires { d.dy; }) add("dy", d.dy);
  if constexpr (requires { d.w; }) add("w", d.w);
  if constexpr (requires { d.y; }) add("y", d.y);
  if constexpr (requires { d.dx; }) add("dx", d.dx);
  if constexpr (requires { d.dw; }) add("dw", d.dw);
  if constexpr (requires { d.src; }) add("src", d.src), add("dst", d.dst);
  if constexpr (requires { d.channels; }) text += " " + std::to_string(d.channels) + " channels";
  if constexpr (requires { d.window; }) {
    const Window& window = d.window;
    text += " window " + to_string(window.kernel) + " stride " + to_string(window.stride) + " padding " +
            to_string(window.padding);
    if (!(window.dilation == 1)) text += " dilation " + to_string(window.dilation);
    if (!(window.more_behind == 0)) text += " and " + to_string(window.more_behind) + " more behind";
  }
}

}  // namespace

const char* name_of(const OpDesc& desc) {
  return std::visit(
      []<typename D>(const D& d) {
        if constexpr (requires { D::kName; })
          return D::kName;
        else
          return d.name();
      },
      desc);
}

std::string shapes_of(const OpDesc& desc) {
  std::string text;
  std::visit([&](const auto& d) { add_shapes(text, d); }, desc);
  return text;
}

void check_shapes(const OpDesc& desc, DType compute, LowPrecision low) {
  const OpCheck check(std::string(name_of(desc)) + " of" + shapes_of(desc), compute, low);
  std::visit([&](const auto& d) { d.check(check); }, desc);
}

}  // namespace dp::kernels
