#include "kernels/plugin.h"
#include "support/catch.h"

using dp::kernels::probe_cuda;

TEST_CASE("the probe for CUDA says why there is none") {
  CHECK(probe_cuda("libdp_no_such_driver.so.1").reason == "no NVIDIA driver (libdp_no_such_driver.so.1 not found)");
  CHECK_THAT(probe_cuda("libz.so.1").reason, Catch::Contains("is not an NVIDIA driver"));
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_NO_DEVICE).reason,
             Catch::Contains("cuInit gives error 100 (no CUDA-capable device is detected)"));
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_BROKEN).reason, Catch::EndsWith("cuInit gives error 999"));
  CHECK(probe_cuda(DP_FAKE_DRIVER_EMPTY).reason == "the NVIDIA driver sees no device");
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_TWO).reason, Catch::Contains("this build has no CUDA backend"));
  for (const char* library : {"libdp_no_such_driver.so.1", DP_FAKE_DRIVER_BROKEN, DP_FAKE_DRIVER_TWO})
    CHECK(probe_cuda(library).count == 0);
}

TEST_CASE("the probe of this machine's driver answers with a reason") {
  const dp::DeviceProbe probe = probe_cuda();
  CHECK((probe.count > 0) != !probe.reason.empty());
}
