#include "kernels/comm/nccl/nccl_api.h"

#include <optional>
#include <utility>

#include "kernels/device/cuda/libraries/libraries.h"

namespace dp::kernels::cuda {
namespace {

constexpr int kOldest = 21000;

NcclLibrary load() {
  LibraryFile library("DP_NCCL_LIBRARY", {"libnccl.so.2"});
  if (!library.found()) return {nullptr, {}, library.reason()};
  static NcclApi api;
  library.find("ncclGetVersion", api.get_version);
  library.find("ncclGetUniqueId", api.get_unique_id);
  library.find("ncclCommInitRank", api.comm_init_rank);
  library.find("ncclCommDestroy", api.comm_destroy);
  library.find("ncclCommAbort", api.comm_abort);
  library.find("ncclCommGetAsyncError", api.comm_get_async_error);
  library.find("ncclGetErrorString", api.get_error_string);
  library.find("ncclBroadcast", api.broadcast);
  library.find("ncclReduce", api.reduce);
  library.find("ncclAllReduce", api.all_reduce);
  library.find("ncclReduceScatter", api.reduce_scatter);
  library.find("ncclAllGather", api.all_gather);
  library.find("ncclSend", api.send);
  library.find("ncclRecv", api.receive);
  library.find("ncclGroupStart", api.group_start);
  library.find("ncclGroupEnd", api.group_end);
  const std::string missing = library.missing() == nullptr ? "" : library.missing();
  library.find("ncclGetLastError", api.get_last_error);  // may be missing
  if (!missing.empty())
    return {nullptr, {}, library.file() + " is not a usable NCCL library (it lacks " + missing + ")"};
  int version = 0;
  if (api.get_version(&version) != NcclResult::success || version < kOldest)
    return {nullptr, {}, library.file() + " is NCCL " + nccl_release(api) + ", older than 2.10"};
  return {&api, library.file(), {}};
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
