#include <omp.h>

#include <cmath>
#include <cstring>

#include "kernels_cpu/cpu_case.h"
#include "support/catch.h"
#include "support/tensor_errors.h"

namespace {

using dp::test::CpuCase;

double largest_difference(const dp::Tensor& a, const dp::Tensor& b) {
  if (a.shape() != b.shape()) return dp::test::kInfinitelyFar;
  double largest = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    largest = dp::test::larger_error(largest, std::abs(dp::test::value_at(a, i) - dp::test::value_at(b, i)));
  return largest;
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
