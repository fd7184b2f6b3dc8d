#include "engine/train/meter.h"

#include <algorithm>

namespace dp {

void Meter::run() {
  if (running_) return;
  since_ = Clock::now();
  running_ = true;
}

void Meter::pause() {
  passed_ = seconds();
  running_ = false;
}

double Meter::seconds() const {
  return passed_ + (running_ ? std::chrono::duration<double>(Clock::now() - since_).count() : 0);
}

void Meter::end_warmup() {
  warm_ = true;
  warmup_end_ = mark_ = read();
}

void Meter::mark() { mark_ = read(); }

double Meter::rate_between(const Reading& from, const Reading& to) {
  const double seconds = to.seconds - from.seconds;
  return seconds > 0 ? static_cast<double>(to.images - from.images) / seconds : 0;
}

double Meter::rate() const {
  const Reading now = read();
  return now.images > warmup_end_.images ? rate_between(warmup_end_, now) : rate_between({}, now);
}

double Meter::rate_since_mark() const {
  const Reading now = read();
  return now.images > mark_.images ? rate_between(mark_, now) : rate();
}

double Meter::loading_between(const Reading& from, const Reading& to) {
  const double seconds = to.seconds - from.seconds;
  return seconds > 0 ? std::clamp((to.loading - from.loading) / seconds, 0.0, 1.0) : 0;
}

}  // namespace dp
