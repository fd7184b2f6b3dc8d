// Devices by name and by default, and the memory of the host.
#include "dp/device.h"

#include <unistd.h>

#include "dp/default_devices.h"
#include "dp/error.h"
#include "engine/base/machine.h"
#include "kernels/device/plugin.h"
#include "support/catch.h"
#include "support/fake_system.h"

using namespace dp;

TEST_CASE("the name of a device can be parsed") {
  for (const Device device : {Device{DeviceKind::cpu, 0}, Device{DeviceKind::reference, 0}, Device{DeviceKind::cuda, 0},
                              Device{DeviceKind::cuda, 12}})
    CHECK(parse_device(to_string(device)) == device);
  CHECK(parse_device("cuda") == Device{DeviceKind::cuda, 0});
  CHECK(to_string(Device{DeviceKind::cpu, 0}) == "cpu");
  CHECK(to_string(Device{DeviceKind::cuda, 12}) == "cuda:12");
  CHECK(to_string(Device{DeviceKind::reference, 0}) == "reference");
}

TEST_CASE("cpus() and gpus() return devices in ascending order") {
  CHECK(cpus(1) == std::vector<Device>{{DeviceKind::cpu, 0}});
  CHECK(cpus(3) == std::vector<Device>(3, Device{DeviceKind::cpu, 0}));
  CHECK_THROWS_WITH(cpus(0), "at least one CPU replica is needed");
  CHECK(gpus({2, 0, 2}) == std::vector<Device>{{DeviceKind::cuda, 2}, {DeviceKind::cuda, 0}, {DeviceKind::cuda, 2}});
  CHECK(gpus({}).empty());
  CHECK_THROWS_WITH(gpus({0, -1}), "GPU id -1 is negative");
}

TEST_CASE("the error for a list of GPUs quotes the invalid part and lists the valid ids") {
  const auto refused = [](const char* text, int count, const std::string& why) {
    INFO(text);
    CHECK_THROWS_WITH(parse_gpu_list(text, count), "--gpus: " + why);
  };
  refused("x", 4, "'x' is not a list of GPU ids such as 0,2 or 0-3; valid ids are 0-3");
  refused("0,", 2, "'0,' is not a list of GPU ids such as 0,2 or 0-3; valid ids are 0-1");
  refused("0-", 2, "'0-' is not a list of GPU ids such as 0,2 or 0-3; valid ids are 0-1");
  refused("0,3-1", 4, "'3-1' is a descending range; valid ids are 0-3");
  refused("1-4", 4, "GPU id 4 does not exist; valid ids are 0-3");
  refused("1", 1, "GPU id 1 does not exist; valid ids are 0");
  refused("0", 0, "GPU id 0 does not exist; no GPU is visible");
  refused("2,1-3", 4,
          "GPU id 2 is listed twice; use --replicas-per-device for several replicas on one GPU; valid ids are 0-3");
  CHECK(parse_gpu_list("all", 0).empty());
  CHECK(parse_gpu_list("all", 3) == std::vector<int>{0, 1, 2});
  CHECK(parse_gpu_list("3,0-1", 4) == std::vector<int>{3, 0, 1});
  CHECK(parse_gpu_list("2-2", 3) == std::vector<int>{2});
}

TEST_CASE("the default devices are all GPUs, or two CPU replicas without a GPU") {
  const int count = probe_devices(DeviceKind::cuda).count;
  if (count > 0)
    CHECK(default_devices() == gpus(parse_gpu_list("all", count)));
  else if (kernels::devices_seen_by_driver() == 0)
    CHECK(default_devices() == cpus(2));
  else
    CHECK_THROWS_WITH(default_devices(), Catch::Contains("no usable GPU: ") && Catch::Contains("pass cpus(N)"));
}

TEST_CASE("the available memory is MemAvailable, or the whole memory if the system does not report it") {
  const test::FakeSystem system;
  CHECK(available_memory() ==
        static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  system.set_available(12345);
  CHECK(available_memory() == std::uint64_t{12345} * 1024);
}
