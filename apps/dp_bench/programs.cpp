#include "programs.h"

#include <dp/error.h>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace dp_bench {
namespace {

std::filesystem::path own_folder() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (unknown)  // a relative path would start a program of the working folder
    throw dp::Error(dp::ErrorCode::usage, "cannot read /proc/self/exe to find other programs: " + unknown.message());
  return program.parent_path();
}

}  // namespace

void point_to_plugins() {
  const std::filesystem::path folder = (own_folder() / "../dp_train").lexically_normal();
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) ::setenv("DP_PLUGIN_PATH", folder.c_str(), 0);
}

std::string find_program(const std::string& name) {
  std::vector<std::filesystem::path> folders;
  if (const char* path = std::getenv("DP_BENCH_PATH"); path != nullptr && *path != '\0') {
    if (*path != '/')
      throw dp::Error(dp::ErrorCode::usage, "DP_BENCH_PATH is " + std::string(path) +
                                                ", which depends on the working folder; set an absolute path");
    folders.emplace_back(path);
  }
  std::error_code ignored;
  for (const char* place : {".", "../../benchmarks", "../lib/dp"})
    folders.push_back((own_folder() / place).lexically_normal());
  std::string places;
  for (const auto& folder : folders) {
    if (std::filesystem::exists(folder / name, ignored)) return (folder / name).string();
    places += (places.empty() ? "" : ", ") + folder.string();
  }
  throw dp::Error(dp::ErrorCode::usage, "program " + name + " not found in " + places +
                                            "; build it (cmake --build <build> --target " + name +
                                            ") or set DP_BENCH_PATH to its folder");
}

}  // namespace dp_bench
