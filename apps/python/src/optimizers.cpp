// Optimizers, parameter groups and schedules.
#include <dp/optimizer.h>
#include <tuple>

#include "convert.h"

namespace dp_python {
namespace {

using Betas = std::pair<double, double>;

template <typename Optimizer>
nb::class_<Optimizer> optimizer(nb::module_& m, const char* name, const char* text) {
  nb::class_<Optimizer> bound(m, name, text);
  bound.def_rw("lr", &Optimizer::lr, "Learning rate.");
  bound.def_rw("weight_decay", &Optimizer::weight_decay, "Weight decay.");
  bound.def("__repr__", [](const Optimizer& self) {
    return nb::str("dp.{}(lr={})").format(nb::type<Optimizer>().attr("__name__"), self.lr);
  });
  return bound;
}

template <typename Optimizer>
void add_betas(nb::class_<Optimizer>& bound) {
  bound.def_prop_rw(
      "betas", [](const Optimizer& self) { return Betas(self.beta1, self.beta2); },
      [](Optimizer& self, const Betas& betas) { std::tie(self.beta1, self.beta2) = betas; },
      "Coefficients of the moving averages.");
}

// Adam, AdamW and Lamb have the same options.
template <typename Optimizer>
void adam_like(nb::module_& m, const char* name, const char* text) {
  auto bound = optimizer<Optimizer>(m, name, text);
  constexpr Optimizer kDefault{};
  bound.def(
      "__init__",
      [](Optimizer* self, float lr, const Betas& betas, float eps, float weight_decay) {
        new (self)
            Optimizer{.lr = lr, .beta1 = betas.first, .beta2 = betas.second, .eps = eps, .weight_decay = weight_decay};
      },
      "lr"_a = kDefault.lr, "betas"_a = Betas(kDefault.beta1, kDefault.beta2), "eps"_a = kDefault.eps,
      "weight_decay"_a = kDefault.weight_decay, text);
  bound.def_rw("eps", &Optimizer::eps, "Added to the denominator.");
  add_betas(bound);
}

void bind_schedule(nb::module_& m) {
  nb::class_<dp::Schedule>(
      m, "Schedule",
      "The learning rate over the epochs, as torch.optim.lr_scheduler. All lengths are in epochs.\n\n"
      "kind: constant, step, multistep, cosine, exponential, polynomial, onecycle or plateau.")
      .def(
          "__init__",
          [](dp::Schedule* self, const std::string& kind, double step_size, double gamma,
             const std::vector<double>& milestones, double warmup_epochs, double min_lr, double power, double pct_start,
             double div_factor, double final_div_factor, std::int64_t patience) {
            new (self) dp::Schedule{
                .kind = choose<dp::ScheduleKind>(
                    "kind", kind,
                    {"constant", "step", "multistep", "cosine", "exponential", "polynomial", "onecycle", "plateau"}),
                .step_size = step_size,
                .gamma = gamma,
                .milestones = milestones,
                .warmup_epochs = warmup_epochs,
                .min_lr = min_lr,
                .power = power,
                .pct_start = pct_start,
                .div_factor = div_factor,
                .final_div_factor = final_div_factor,
                .patience = patience};
          },
          "kind"_a = "constant", nb::kw_only(), "step_size"_a = 1.0, "gamma"_a = 0.1, "milestones"_a = nb::list(),
          "warmup_epochs"_a = 0.0, "min_lr"_a = 0.0, "power"_a = 1.0, "pct_start"_a = 0.3, "div_factor"_a = 25.0,
          "final_div_factor"_a = 1e4, "patience"_a = 10)
      .def(
          "rate",
          [](const dp::Schedule& self, double lr, double epoch, double total_epochs, double epochs_per_step) {
            dp::Schedule whole = self;
            whole.total_epochs = total_epochs;
            return whole.rate(lr, epoch, epochs_per_step);
          },
          "lr"_a, "epoch"_a, "total_epochs"_a = 1.0, "epochs_per_step"_a = 0.0,
          "The learning rate at this epoch, which may be a fraction: completed steps / steps per epoch.");
}

}  // namespace

void bind_optimizers(nb::module_& m) {
  auto sgd = optimizer<dp::Sgd>(m, "Sgd", "As torch.optim.SGD.");
  sgd.def(
      "__init__",
      [](dp::Sgd* self, float lr, float momentum, bool nesterov, float weight_decay) {
        new (self) dp::Sgd{.lr = lr, .momentum = momentum, .nesterov = nesterov, .weight_decay = weight_decay};
      },
      "lr"_a = 0.1f, "momentum"_a = 0.0f, "nesterov"_a = false, "weight_decay"_a = 0.0f);
  sgd.def_rw("momentum", &dp::Sgd::momentum, "Momentum.")
      .def_rw("nesterov", &dp::Sgd::nesterov, "Nesterov's momentum.");

  adam_like<dp::Adam>(m, "Adam", "As torch.optim.Adam.");
  adam_like<dp::AdamW>(m, "AdamW", "As torch.optim.AdamW.");
  adam_like<dp::Lamb>(m, "Lamb", "LAMB as in timm: Adam with a trust ratio for each parameter.");

  auto lion = optimizer<dp::Lion>(m, "Lion", "Lion (Chen et al. 2023).");
  lion.def(
      "__init__",
      [](dp::Lion* self, float lr, const Betas& betas, float weight_decay) {
        new (self) dp::Lion{.lr = lr, .beta1 = betas.first, .beta2 = betas.second, .weight_decay = weight_decay};
      },
      "lr"_a = 1e-4f, "betas"_a = Betas(0.9, 0.99), "weight_decay"_a = 0.0f);
  add_betas(lion);

  auto rms = optimizer<dp::RmsProp>(m, "RmsProp", "As torch.optim.RMSprop.");
  rms.def(
      "__init__",
      [](dp::RmsProp* self, float lr, double alpha, float eps, float momentum, bool centered, float weight_decay) {
        new (self) dp::RmsProp{.lr = lr,
                               .alpha = alpha,
                               .eps = eps,
                               .momentum = momentum,
                               .centered = centered,
                               .weight_decay = weight_decay};
      },
      "lr"_a = 1e-2f, "alpha"_a = 0.99, "eps"_a = 1e-8f, "momentum"_a = 0.0f, "centered"_a = false,
      "weight_decay"_a = 0.0f);

  auto muon =
      optimizer<dp::Muon>(m, "Muon",
                          "As torch.optim.Muon for matrices, and AdamW with the same learning rate for all other "
                          "parameters.");
  muon.def(
      "__init__",
      [](dp::Muon* self, float lr, float momentum, bool nesterov, bool match_rms, const Betas& betas, float eps,
         float weight_decay) {
        new (self) dp::Muon{.lr = lr,
                            .momentum = momentum,
                            .nesterov = nesterov,
                            .match_rms = match_rms,
                            .beta1 = betas.first,
                            .beta2 = betas.second,
                            .eps = eps,
                            .weight_decay = weight_decay};
      },
      "lr"_a = 1e-3f, "momentum"_a = 0.95f, "nesterov"_a = true, "match_rms"_a = true, "betas"_a = Betas(0.9, 0.999),
      "eps"_a = 1e-8f, "weight_decay"_a = 0.1f);
  add_betas(muon);

  nb::class_<dp::ParameterGroup>(
      m, "ParameterGroup",
      "Parameters that an optimizer treats differently. The first group that a parameter fits "
      "counts.\n\npattern: of names, with the shell's * and ?. vectors: only biases and "
      "normalisation.")
      .def(
          "__init__",
          [](dp::ParameterGroup* self, const std::string& pattern, bool vectors, float lr_factor,
             std::optional<float> weight_decay, bool frozen) {
            new (self) dp::ParameterGroup{.pattern = pattern,
                                          .vectors = vectors,
                                          .lr_factor = lr_factor,
                                          .weight_decay = weight_decay,
                                          .frozen = frozen};
          },
          "pattern"_a = "*", nb::kw_only(), "vectors"_a = false, "lr_factor"_a = 1.0f, "weight_decay"_a = nb::none(),
          "frozen"_a = false);
  bind_schedule(m);
}

}  // namespace dp_python
