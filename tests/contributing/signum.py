"""What CONTRIBUTING.md's section "Add an optimizer" adds for a toy: Signum, w -= lr * sign(momentum)."""

# (file, text that occurs once, what replaces it; @ is that text)
INSERTIONS = (
    ("engine/include/dp/optimizer.h", "// Every alternative has `lr` and `weight_decay`.", """\
struct Signum {
  static constexpr const char* kName = "signum";
  static constexpr OptimizerSlot kSlots[] = {{"momentum_buffer"}};
  static constexpr bool kDecoupledDecay = true;

  float lr = 1e-3f;
  float momentum = 0.9f;
  float weight_decay = 0;

  template <typename T>
  struct Rule {
    T lr, momentum;

    constexpr Rule(const RuleOptions& options, double rate, std::int64_t) : lr(T(rate)), momentum(T(options.momentum)) {}
    constexpr T operator()(T gradient, T weight, T& velocity) const {
      velocity = momentum * velocity + (1 - momentum) * gradient;
      return weight - lr * (velocity > 0 ? T(1) : velocity < 0 ? T(-1) : velocity);
    }
  };
};

@"""),
    ("engine/include/dp/optimizer.h", "Muon>;", "Muon, Signum>;"),
)
TESTS = ("test_optimizer",)  # its cases for every optimizer
