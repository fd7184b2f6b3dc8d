#include "kernels/cuda/comm/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>
#include <utility>

namespace dp::kernels::cuda {
namespace {

constexpr int kOldest = 21000;

template <typename Function>
bool find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

NcclLibrary load() {
  const char* const named = std::getenv("DP_NCCL_LIBRARY");
  const std::string file = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, {}, file + " was not found"};
  static NcclApi api;
  std::string missing;
  const bool complete =
      find(library, "ncclGetVersion", api.get_version, missing) &&
      find(library, "ncclGetUniqueId", api.get_unique_id, missing) &&
      find(library, "ncclCommInitRank", api.comm_init_rank, missing) &&
      find(library, "ncclCommDestroy", api.comm_destroy, missing) &&
      find(library, "ncclCommAbort", api.comm_abort, missing) &&
      find(library, "ncclCommGetAsyncError", api.comm_get_async_error, missing) &&
      find(library, "ncclGetErrorString", api.get_error_string, missing) &&
      find(library, "ncclBroadcast", api.broadcast, missing) && find(library, "ncclReduce", api.reduce, missing) &&
      find(library, "ncclAllReduce", api.all_reduce, missing) &&
      find(library, "ncclReduceScatter", api.reduce_scatter, missing) &&
      find(library, "ncclAllGather", api.all_gather, missing) && find(library, "ncclSend", api.send, missing) &&
      find(library, "ncclRecv", api.receive, missing) && find(library, "ncclGroupStart", api.group_start, missing) &&
      find(library, "ncclGroupEnd", api.group_end, missing);
  std::string ignored;
  find(library, "ncclGetLastError", api.get_last_error, ignored);
  if (!complete) return {nullptr, {}, file + " is not a usable NCCL library (it lacks " + missing + ")"};
  int version = 0;
  if (api.get_version(&version) != NcclResult::success || version < kOldest)
    return {nullptr, {}, file + " is NCCL " + nccl_release(api) + ", older than 2.10"};
  return {&api, file, {}};
}

std::optional<NcclLibrary>& provided() {
  static std::optional<NcclLibrary> library;
  return library;
}

}  // namespace

const NcclLibrary& nccl() {
  if (provided()) return *provided();
  static const NcclLibrary library = load();
  return library;
}

void provide_nccl(NcclLibrary library) { provided() = std::move(library); }

std::string nccl_release(const NcclApi& api) {
  int version = 0;
  if (api.get_version(&version) != NcclResult::success) return "of an unknown version";
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace dp::kernels::cuda
