// Runs under `ulimit -v`. oneDNN crashes if one of its small allocations fails, so no op is created just before the
// limit.
#include <sys/resource.h>

#include <fstream>

#include "dp/error.h"
#include "kernels_cpu/cpu_case.h"
#include "support/catch.h"

namespace {

// Limits the growth of the address space to `more` bytes during the object's lifetime.
class AddressLimit {
 public:
  explicit AddressLimit(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * 4096 + more;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("no op is made if too little address space is left for oneDNN") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  DP_SKIP("the sanitizers' shadow memory does not fit in the limit");
#endif
  dp::ErrorCode code = dp::ErrorCode::usage;
  std::string text;
  {
    const AddressLimit limit(std::size_t{64} << 20);
    try {
      dp::test::every_cpu_op(1);
    } catch (const dp::Error& error) {
      code = error.code();
      text = error.what();
    }
  }
  INFO(text);
  CHECK(code == dp::ErrorCode::device);
  CHECK(text.find("out of address space") != std::string::npos);
  CHECK(text.find("ulimit -v") != std::string::npos);
  CHECK_FALSE(dp::test::every_cpu_op(1).empty());
}
