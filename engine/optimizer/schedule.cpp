// Learning rate schedules.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "dp/optimizer.h"

namespace dp {

double Schedule::factor(double epoch, double epochs_per_step) const {
  // The small offset ensures that a milestone at a step takes effect at that step, despite rounding of steps / steps
  // per epoch.
  const double now = epoch + 1e-6 * epochs_per_step;
  const double warmup = warmup_epochs > 0 ? std::min(1.0, (epoch + epochs_per_step) / warmup_epochs) : 1.0;
  switch (kind) {
    case ScheduleKind::constant: return warmup;
    case ScheduleKind::step: return warmup * std::pow(gamma, std::floor(now / step_size));
    case ScheduleKind::multistep: {
      const auto passed = std::count_if(milestones.begin(), milestones.end(), [&](double at) { return at <= now; });
      return warmup * std::pow(gamma, static_cast<double>(passed));
    }
    case ScheduleKind::cosine: {
      if (warmup < 1) return warmup;
      const double length = total_epochs - warmup_epochs;
      if (length <= 0) return warmup;  // the warm-up fills the run
      const double done = std::clamp((epoch - warmup_epochs) / length, 0.0, 1.0);
      return 0.5 * (1 + std::cos(std::numbers::pi * done));
    }
  }
  return 1;
}

double Schedule::rate(double lr, double epoch, double epochs_per_step) const {
  const bool warms_up = epoch + epochs_per_step < warmup_epochs;
  const double end = kind == ScheduleKind::cosine && !warms_up ? min_lr : 0;
  return end + (lr - end) * factor(epoch, epochs_per_step);
}

}  // namespace dp
