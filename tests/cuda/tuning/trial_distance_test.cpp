// The difference of two results, computed by Thrust on a real GPU and by plain loops in the simulation. The values are
// small integers, so every order of additions gives the same sum.
#include "kernels/tuning/trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/device/cuda/cuda_backend.h"
#include "kernels/device/cuda/stream.h"
#include "kernels/low_float.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;

namespace {

template <typename T>
std::vector<std::byte> stored(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    if constexpr (std::is_same_v<T, double>)
      value = static_cast<double>(values[i]);
    else
      value = from_float<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

template <typename T>
void check_distances(DType type, std::size_t count) {
  INFO(to_string(type) << ", " << count << " elements");
  std::vector<float> a(count), b(count);
  for (std::size_t i = 0; i < count; ++i) {
    b[i] = static_cast<float>(static_cast<int>(i * 7 % 17) - 8);
    a[i] = b[i] + static_cast<float>(i % 5 == 0 ? i % 3 : 0);
  }
  a[count / 2] = std::numeric_limits<float>::quiet_NaN();
  const std::size_t length = distance_part(count);
  const std::unique_ptr<Context> context = cuda_backend().open({DeviceKind::cuda, 0}, {});
  context->bind_thread();
  const std::unique_ptr<Stream> stream = context->make_stream();
  const auto uploaded = [&](const std::vector<std::byte>& bytes) {
    std::unique_ptr<Buffer> buffer = context->allocate(bytes.size());
    stream->copy(buffer->data(), bytes.data(), bytes.size());
    return buffer;
  };
  const auto on_a = uploaded(stored<T>(a)), on_b = uploaded(stored<T>(b));
  const std::vector<Distance> parts =
      distances(static_cast<CudaStream&>(*stream).native(), on_a->data(), on_b->data(), type, count);
  REQUIRE(parts.size() == (count + length - 1) / length);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    Distance expected;
    for (std::size_t i = part * length; i < std::min(count, (part + 1) * length); ++i) {
      expected.apart += static_cast<double>((a[i] - b[i]) * (a[i] - b[i]));
      expected.norm += static_cast<double>(b[i] * b[i]);
      expected.numbers += std::isnan(a[i]) ? 0 : 1;
    }
    INFO("part " << part);
    CHECK((parts[part].apart == expected.apart || (std::isnan(parts[part].apart) && std::isnan(expected.apart))));
    CHECK(parts[part].norm == expected.norm);
    CHECK(parts[part].numbers == expected.numbers);
  }
}

}  // namespace

TEST_CASE("trial: distance, norm and number of elements that are not NaN are correct for every part of two results") {
  if (const DeviceProbe probe = cuda_backend().probe(); probe.count == 0) DP_SKIP(probe.reason);
  for (const std::size_t count : {1, 7, 511, 512, 513, 1024, 40'001}) {
    check_distances<float>(DType::f32, count);
    check_distances<double>(DType::f64, count);
    check_distances<BFloat16>(DType::bf16, count);
    check_distances<Float16>(DType::f16, count);
  }
}
