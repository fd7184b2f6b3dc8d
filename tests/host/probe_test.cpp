#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "dp/device.h"
#include "kernels/device/plugin.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using dp::kernels::load_plugin;
using dp::kernels::probe_cuda;

namespace {

// Sets DP_PLUGIN_PATH during its lifetime.
class PluginPath {
 public:
  explicit PluginPath(const std::string& path) { setenv("DP_PLUGIN_PATH", path.c_str(), 1); }
  ~PluginPath() { unsetenv("DP_PLUGIN_PATH"); }
};

}  // namespace

TEST_CASE("the probe for CUDA reports why CUDA is not available") {
  const PluginPath nowhere("/no/such/folder");
  CHECK(probe_cuda("libdp_no_such_driver.so.1").reason == "no NVIDIA driver (libdp_no_such_driver.so.1 not found)");
  CHECK_THAT(probe_cuda("libz.so.1").reason, Catch::Contains("is not an NVIDIA driver"));
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_NO_DEVICE).reason,
             Catch::Contains("cuInit returned error 100 (no CUDA-capable device is detected)"));
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_BROKEN).reason, Catch::EndsWith("cuInit returned error 999"));
  CHECK(probe_cuda(DP_FAKE_DRIVER_EMPTY).reason == "the NVIDIA driver reports no device");
  CHECK_THAT(probe_cuda(DP_FAKE_DRIVER_TWO).reason, Catch::Contains("no CUDA plugin was found") &&
                                                        Catch::Contains("/no/such/folder") &&
                                                        Catch::EndsWith("the driver reports 2 devices"));
  for (const char* library : {"libdp_no_such_driver.so.1", DP_FAKE_DRIVER_BROKEN, DP_FAKE_DRIVER_TWO})
    CHECK(probe_cuda(library).count == 0);
}

TEST_CASE("the driver's devices are counted with and without a plugin") {
  const PluginPath nowhere("/no/such/folder");
  CHECK(dp::kernels::devices_seen_by_driver(DP_FAKE_DRIVER_TWO) == 2);
  for (const char* library : {"libdp_no_such_driver.so.1", DP_FAKE_DRIVER_BROKEN, DP_FAKE_DRIVER_EMPTY})
    CHECK(dp::kernels::devices_seen_by_driver(library) == 0);
}

TEST_CASE("a plugin is searched in the run path of the library, beside the library, and beside the program") {
  void* const library = dlopen(DP_PLUGIN_SEEKER, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto seek = reinterpret_cast<void (*)(char*, unsigned)>(dlsym(library, "seek_plugin"));
  REQUIRE(seek != nullptr);
  char text[4096] = "";
  const auto folder = [](std::filesystem::path path, int up) {
    for (; up > 0; --up) path = path.parent_path();
    return path.string();
  };
  const std::string file = "/libdp_sought.so", holder = std::filesystem::canonical(DP_PLUGIN_SEEKER).string(),
                    program = std::filesystem::canonical("/proc/self/exe").string();
  ::unsetenv("DP_PLUGIN_PATH");
  seek(text, sizeof text);
  CHECK(std::string(text) == "no sought plugin was found (looked for /recorded/folder" + file + ", " +
                                 folder(holder, 2) + "/moved" + file + ", /another" + file + ", " + folder(holder, 1) +
                                 file + ", " + folder(holder, 2) + "/lib/dp" + file + ", " + folder(program, 1) + file +
                                 ", " + folder(program, 2) + "/lib/dp" + file +
                                 "; set DP_PLUGIN_PATH to search other folders)");
  const PluginPath named("/named");
  seek(text, sizeof text);
  CHECK_THAT(text, Catch::EndsWith("(looked for /named; DP_PLUGIN_PATH is set, so nothing else is searched)"));
}

TEST_CASE("modules are loaded lazily unless CUDA_MODULE_LOADING is set") {
  const PluginPath nowhere("/no/such/folder");
  ::unsetenv("CUDA_MODULE_LOADING");
  probe_cuda(DP_FAKE_DRIVER_TWO);
  CHECK(std::string(std::getenv("CUDA_MODULE_LOADING")) == "LAZY");
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  probe_cuda(DP_FAKE_DRIVER_TWO);
  CHECK(std::string(std::getenv("CUDA_MODULE_LOADING")) == "EAGER");
  ::unsetenv("CUDA_MODULE_LOADING");
}

TEST_CASE("no variable loads a library of the working folder") {
  const dp::test::TemporaryFolder folder;
  const auto previous = std::filesystem::current_path();
  std::filesystem::copy_file(DP_FAKE_DRIVER_TWO, folder / "planted.so");
  std::filesystem::current_path(folder.path());
  for (const std::string variable : {"DP_NCCL_LIBRARY", "DP_CUDNN_LIBRARY"}) {
    for (const std::string value : {"./planted.so", "../planted.so", "lib/planted.so", "~/planted.so"}) {
      CHECK_THAT(dp::kernels::relative_library(variable, value),
                 Catch::StartsWith(variable + " is " + value + ", a path that depends on the working folder"));
      ::setenv(variable.c_str(), value.c_str(), 1);
      CHECK_THAT(dp::describe_environment(), Catch::Contains("depends on the working folder"));
    }
    ::setenv(variable.c_str(), "planted.so", 1);
    CHECK_THAT(dp::describe_environment(), !Catch::Contains("planted.so"));
    ::unsetenv(variable.c_str());
  }
  for (const char* value : {"/lib/planted.so", "planted.so", "none"})
    CHECK(dp::kernels::relative_library("DP_NCCL_LIBRARY", value).empty());
  std::filesystem::current_path(previous);
}

TEST_CASE("the probe of this machine's driver reports devices or a reason") {
  const dp::DeviceProbe probe = probe_cuda();
  CHECK((probe.count > 0) != !probe.reason.empty());
}

TEST_CASE("DP_PLUGIN_PATH names the plugin, and an invalid or foreign one is rejected in one line") {
  const dp::test::TemporaryFolder folder;
  const auto refused = [](const std::string& path) {
    const PluginPath named(path);
    const dp::kernels::LoadedPlugin plugin = load_plugin();
    CHECK(plugin.backend == nullptr);
    CHECK(plugin.reason.find('\n') == std::string::npos);
    return plugin.reason;
  };
  CHECK_THAT(refused(folder.path()), Catch::Contains("no CUDA plugin was found"));
  CHECK_THAT(refused(DP_FAKE_DRIVER_TWO), Catch::Contains("is not a plugin of dp"));
  CHECK_THAT(refused(DP_FOREIGN_PLUGIN),
             Catch::Contains("belongs to another build of dp") && Catch::Contains("other-hash"));
  dp::test::write_text(folder / "libdp_cuda.so", "not a library");
  CHECK_THAT(refused(folder.path()), Catch::Contains("cannot be loaded"));
  const auto previous = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  for (const char* relative : {".", "libdp_cuda.so", "./libdp_cuda.so", "plugins", "/no/such/folder:..", "~/plugins"})
    CHECK_THAT(refused(relative), Catch::Contains("which depends on the working folder"));
  for (const char* empty : {":", "/no/such/folder:", ":/no/such/folder"})
    CHECK_THAT(refused(empty), Catch::Contains("no CUDA plugin was found"));
  std::filesystem::current_path(previous);
  CHECK_THAT(refused("/no/such/folder:" + std::string(DP_FOREIGN_PLUGIN)), Catch::Contains("another build"));
}
