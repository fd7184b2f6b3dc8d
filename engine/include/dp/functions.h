// Pointwise functions: the activations that ModelBuilder::activation() takes, with PyTorch's names, parameters and
// defaults. Every backend compiles them: the reference in double, CPUs and GPUs in float.
//
// A new one is a struct with a name, value() and derivative(), and its place in Function. Both get the function's
// argument x. They return NaN for NaN, and are compiled without fast-math.
#pragma once

#include <cmath>
#include <variant>

namespace dp {

struct Relu6 {  // min(max(x, 0), 6)
  static constexpr const char* kName = "relu6";
  template <typename T>
  constexpr T value(T x) const {
    return x < 0 ? T(0) : x > 6 ? T(6) : x;
  }
  template <typename T>
  constexpr T derivative(T x) const {
    return x <= 0 || x >= 6 ? T(0) : T(1);
  }
};

struct LeakyRelu {  // x, or negative_slope * x below zero
  static constexpr const char* kName = "leaky_relu";
  float negative_slope = 0.01f;

  template <typename T>
  constexpr T value(T x) const {
    return x > 0 ? x : T(negative_slope) * x;
  }
  template <typename T>
  constexpr T derivative(T x) const {
    return x > 0 ? T(1) : T(negative_slope);
  }
};

struct Elu {  // x, or alpha * (exp(x) - 1) below zero
  static constexpr const char* kName = "elu";
  float alpha = 1;

  template <typename T>
  constexpr T value(T x) const {
    const T below = T(alpha) * std::expm1(x);
    return x > 0 ? x : below;
  }
  template <typename T>
  constexpr T derivative(T x) const {
    const T below = T(alpha) * std::exp(x);
    return x > 0 ? T(1) : below;
  }
};

struct Sigmoid {  // 1 / (1 + exp(-x))
  static constexpr const char* kName = "sigmoid";
  template <typename T>
  constexpr T value(T x) const {
    return 1 / (1 + std::exp(-x));
  }
  template <typename T>
  constexpr T derivative(T x) const {
    const T y = value(x);
    return y * (1 - y);
  }
};

struct HardSigmoid {  // min(max(x + 3, 0), 6) / 6
  static constexpr const char* kName = "hardsigmoid";
  template <typename T>
  constexpr T value(T x) const {
    return Relu6().value(x + 3) / 6;
  }
  template <typename T>
  constexpr T derivative(T x) const {
    return Relu6().derivative(x + 3) / 6;
  }
};

struct Tanh {
  static constexpr const char* kName = "tanh";
  template <typename T>
  constexpr T value(T x) const {
    return std::tanh(x);
  }
  template <typename T>
  constexpr T derivative(T x) const {
    const T y = std::tanh(x);
    return 1 - y * y;
  }
};

struct Silu {  // x * sigmoid(x), also called swish
  static constexpr const char* kName = "silu";
  template <typename T>
  constexpr T value(T x) const {
    return x / (1 + std::exp(-x));
  }
  template <typename T>
  constexpr T derivative(T x) const {
    const T share = Sigmoid().value(x);
    return share * (1 + x * (1 - share));
  }
};

struct HardSwish {  // x * min(max(x + 3, 0), 6) / 6
  static constexpr const char* kName = "hardswish";
  template <typename T>
  constexpr T value(T x) const {
    return x * Relu6().value(x + 3) / 6;
  }
  template <typename T>
  constexpr T derivative(T x) const {
    return x <= -3 ? T(0) : x >= 3 ? T(1) : x / 3 + T(0.5);
  }
};

struct Gelu {  // x * P(a normal variable is below x), by the error function
  static constexpr const char* kName = "gelu";
  template <typename T>
  constexpr T value(T x) const {
    return x * below(x);
  }
  template <typename T>
  constexpr T derivative(T x) const {
    constexpr T kDensity = T(0.3989422804014326779);  // 1 / sqrt(2 pi)
    return below(x) + x * kDensity * std::exp(T(-0.5) * x * x);
  }

 private:
  template <typename T>
  static constexpr T below(T x) {
    constexpr T kRoot = T(0.7071067811865475244);  // 1 / sqrt(2)
    return T(0.5) * (1 + std::erf(kRoot * x));
  }
};

struct GeluTanh {  // PyTorch's GELU(approximate='tanh'): x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
  static constexpr const char* kName = "gelu_tanh";
  template <typename T>
  constexpr T value(T x) const {
    return T(0.5) * x * (1 + std::tanh(inner(x)));
  }
  template <typename T>
  constexpr T derivative(T x) const {
    const T y = std::tanh(inner(x));
    const T slope = T(kRoot) * (1 + 3 * T(kCube) * x * x);
    return T(0.5) * (1 + y) + T(0.5) * x * (1 - y * y) * slope;
  }

 private:
  static constexpr double kRoot = 0.7978845608028653559;  // sqrt(2 / pi)
  static constexpr double kCube = 0.044715;
  template <typename T>
  static constexpr T inner(T x) {
    return T(kRoot) * (x + T(kCube) * x * x * x);
  }
};

struct Times {  // factor * x
  static constexpr const char* kName = "times";
  float factor = 1;

  template <typename T>
  constexpr T value(T x) const {
    return T(factor) * x;
  }
  template <typename T>
  constexpr T derivative(T) const {
    return T(factor);
  }
};

using Function =
    std::variant<Relu6, LeakyRelu, Elu, Sigmoid, HardSigmoid, Tanh, Silu, HardSwish, Gelu, GeluTanh, Times>;

inline const char* name_of(const Function& function) {
  return std::visit([](const auto& f) { return f.kName; }, function);
}

}  // namespace dp
