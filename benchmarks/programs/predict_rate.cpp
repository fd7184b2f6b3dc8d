// Prints the images per second of dp::Predictor with resnet18, for onnxruntime_predict.py: of the median call with a
// batch of float32 images.
// usage: predict_rate [3,32,32 [batch [threads [seconds]]]]
#include <dp/dp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

int main(int argc, char** argv) {
  long long c = 3, h = 32, w = 32;
  if (argc > 1 && std::sscanf(argv[1], "%lld,%lld,%lld", &c, &h, &w) != 3) return 2;
  const std::int64_t batch = argc > 2 ? std::atoll(argv[2]) : 64;
  const double seconds = argc > 4 ? std::atof(argv[4]) : 3;
  const dp::models::Entry& entry = dp::models::find("resnet18");
  const dp::Model model = entry.make(dp::Shape{c, h, w}, h > 32 ? 1000 : 10);
  dp::TrainedModel network{model, dp::DataParallel(model, {.devices = dp::cpus(1)}).weights()};
  dp::PredictorOptions options;
  options.parallel.devices = dp::cpus(1);
  options.parallel.threads_per_replica = argc > 3 ? std::atoi(argv[3]) : 2;
  dp::Predictor predictor(std::move(network), options);
  dp::Tensor images(dp::Shape{batch, c, h, w});
  dp::Random random(1, dp::RandomUse::synthetic);
  for (float& value : images.span<float>()) value = random.uniform(-2, 2);
  for (const auto begin = Clock::now(); seconds_since(begin) < 0.5;) predictor.predict(images);
  std::vector<double> times;
  for (const auto begin = Clock::now(); seconds_since(begin) < seconds || times.size() < 3;) {
    const auto call = Clock::now();
    predictor.predict(images);
    times.push_back(seconds_since(call));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  std::printf("%.2f\n", static_cast<double>(batch) / times[times.size() / 2]);
}
