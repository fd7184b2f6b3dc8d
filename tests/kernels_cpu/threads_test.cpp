#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "kernels/conv/cpu_own.h"
#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/parallel.h"
#include "kernels/linear/cpu_chunks.h"
#include "kernels_cpu/cpu_case.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"
#include "support/tensor_errors.h"

namespace {

using dp::test::any_layout;
using dp::test::CpuCase;
using dp::test::Tag;
using dp::test::with_tag;

double largest_difference(const dp::Tensor& a, const dp::Tensor& b) {
  if (a.shape() != b.shape()) return dp::test::kInfinitelyFar;
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    largest = dp::test::larger_error(largest, std::abs(dp::test::value_at(a, i) - dp::test::value_at(b, i)));
  return largest;
}

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// An op of one thread, with memory for its arguments.
CpuCase single(std::unique_ptr<dp::kernels::HostOp> op, std::initializer_list<std::size_t> bytes) {
  CpuCase c{op->implementation(), std::move(op), {}, {}, true, {}, {}};
  for (const std::size_t size : bytes) c.memory.emplace_back(dp::Shape{static_cast<std::int64_t>(size)}, dp::DType::u8);
  for (dp::Tensor& t : c.memory) c.args.push_back(t.raw());
  c.workspace = dp::Tensor(dp::Shape{static_cast<std::int64_t>(c.op->workspace_bytes() + 64)}, dp::DType::u8);
  return c;
}

}  // namespace

TEST_CASE("our own ops give the same bits on any number of threads, oneDNN's the same values") {
  std::vector<CpuCase> one = dp::test::every_cpu_op(1);
  for (CpuCase& c : one) c.run();
  for (const int threads : {2, 3}) {
    std::vector<CpuCase> many = dp::test::every_cpu_op(threads);
    REQUIRE(many.size() == one.size());
    for (std::size_t i = 0; i < many.size(); ++i) {
      many[i].run();
      INFO(many[i].name << ", " << many[i].op->implementation() << " on " << threads << " threads");
      for (const std::size_t output : many[i].outputs) {
        const dp::Tensor &a = one[i].memory[output], &b = many[i].memory[output];
        REQUIRE(a.bytes() == b.bytes());
        if (many[i].exact)
          CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
        else
          CHECK(largest_difference(a, b) < 2e-4);  // sums of up to 960 products below 1
      }
    }
  }
}

TEST_CASE("making an op does not change OpenMP's number of threads") {
  omp_set_num_threads(3);
  dp::test::every_cpu_op(1);
  CHECK(omp_get_max_threads() == 3);
}

TEST_CASE("every op names its implementation, and no product uses oneDNN's naive loops") {
  for (const CpuCase& c : dp::test::every_cpu_op(1)) {
    INFO(c.name << ": " << c.op->implementation());
    CHECK_FALSE(c.op->implementation().empty());
    CHECK(c.op->implementation().find("ref") == std::string::npos);
  }
}

// OpenMP keeps the threads that it has started for their caller.
TEST_CASE("an op of one thread starts no other thread, for any OpenMP setting") {
  std::vector<CpuCase> ops = dp::test::every_cpu_op(1);
  const dp::kernels::CpuOpOptions one{.threads = 1};
  const dp::Shape image{8, 64, 16, 16}, weights{64, 64, 3, 3};
  const std::size_t bytes = static_cast<std::size_t>(image.numel()) * 4;
  const auto x = with_tag(image, Tag::nChw16c), w = with_tag(weights, Tag::OIhw16i16o);
  const dp::kernels::Window same{3, 1, 1};
  ops.push_back(
      single(make_winograd(dp::kernels::Conv2dBackwardData{x, w, x, same}, one), {bytes, w.layout.bytes, bytes}));
  ops.push_back(single(make_winograd(dp::kernels::Conv2dBackwardWeights{x, x, w, same, true}, one),
                       {bytes, bytes, w.layout.bytes, 64 * 4}));
  const dp::kernels::LinearBackwardData linear{any_layout({64, 512}), with_tag({512, 2048}, Tag::ba),
                                               with_tag({64, 2048}, Tag::ab)};
  ops.push_back(single(make_chunked_backward_data(linear, one), {64 * 512 * 4, 512 * 2048 * 4, 64 * 2048 * 4}));
  for (CpuCase& c : ops) {
    std::ptrdiff_t before = 0, after = 0;
    std::thread([&] {  // has no team yet
      omp_set_num_threads(3);
      before = threads_of_this_process();
      c.run();
      after = threads_of_this_process();
    })
        .join();
    INFO(c.name << ", " << c.op->implementation());
    CHECK(after <= before);
  }
}

TEST_CASE("a range is divided at multiples of the grain, and short work uses one thread") {
  using dp::kernels::threads_for;
  CHECK(threads_for(3, 32 * 1024 - 1) == 1);
  CHECK(threads_for(3, 32 * 1024) == 3);
  CHECK(threads_for(1, 1 << 30) == 1);
  for (const int threads : {1, 2, 3}) {
    if (threads > 1 && dp::kernels::kThreadSanitizer) continue;
    for (const std::int64_t count : {0, 1, 16, 17, 32, 100}) {
      INFO(count << " elements on " << threads << " threads");
      std::vector<std::pair<std::int64_t, std::int64_t>> parts(3);
      std::vector<int> calls(3);
      dp::kernels::parallel_ranges(threads, count, 16, [&](std::int64_t begin, std::int64_t end) {
        const auto own = static_cast<std::size_t>(omp_get_thread_num());
        parts.at(own) = {begin, end};
        ++calls.at(own);
      });
      std::int64_t next = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        CHECK(calls[i] <= 1);
        if (calls[i] == 0) continue;
        CHECK(parts[i].first == next);
        CHECK(parts[i].first % 16 == 0);
        CHECK(parts[i].second > parts[i].first);
        next = parts[i].second;
      }
      CHECK(next == count);
      if (count == 100) CHECK(std::count(calls.begin(), calls.end(), 1) == threads);  // seven grains
    }
  }
}
