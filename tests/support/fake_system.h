// Replaces the root of /proc and /sys so that a test sets the available memory and cores.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/device/host/cores.h"
#include "support/temporary_folder.h"

namespace dp::test {

class FakeSystem {
 public:
  FakeSystem() { kernels::system_root() = folder_.path(); }
  ~FakeSystem() { kernels::system_root().clear(); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_.path() + path).parent_path());
    write_text(folder_.path() + path, text);
  }
  void set_available(std::size_t kibibytes) const {
    write("/proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: " + std::to_string(kibibytes) + " kB\n");
  }

 private:
  const TemporaryFolder folder_;
};

}  // namespace dp::test
