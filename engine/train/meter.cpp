#include "engine/train/meter.h"

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
  warmup_end_ = mark_ = here();
}

void Meter::mark() { mark_ = here(); }

double Meter::between(const Point& from, const Point& to) {
  const double seconds = to.seconds - from.seconds;
  return seconds > 0 ? static_cast<double>(to.images - from.images) / seconds : 0;
}

double Meter::rate() const {
  const Point now = here();
  return now.images > warmup_end_.images ? between(warmup_end_, now) : between({}, now);
}

double Meter::rate_since_mark() const {
  const Point now = here();
  return now.images > mark_.images ? between(mark_, now) : rate();
}

}  // namespace dp
