// NCCL functions, loaded at run time. Neither the header nor the library is needed to build or to start. The declared
// part of the C interface has not changed since 2.10. tests/simulated_cuda/nccl_header_test.cpp compares it with
// nccl.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace dp::kernels::cuda {

enum class NcclResult : int {
  success = 0,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};
enum class NcclType : int { u8 = 1, f32 = 7, f64 = 8, bf16 = 9 };
enum class NcclOp : int { sum = 0 };
struct NcclId {
  char bytes[128];
};
struct NcclRank;  // NCCL's opaque type behind ncclComm_t
using NcclComm = NcclRank*;

struct NcclApi {
  NcclResult (*get_version)(int* version);
  NcclResult (*get_unique_id)(NcclId* id);
  NcclResult (*comm_init_rank)(NcclComm* comm, int ranks, NcclId id, int rank);
  NcclResult (*comm_destroy)(NcclComm comm);
  NcclResult (*comm_abort)(NcclComm comm);
  NcclResult (*comm_get_async_error)(NcclComm comm, NcclResult* error);
  const char* (*get_error_string)(NcclResult result);
  const char* (*get_last_error)(NcclComm comm);  // null before NCCL 2.13
  NcclResult (*broadcast)(const void* from, void* to, std::size_t count, NcclType type, int root, NcclComm comm,
                          cudaStream_t stream);
  NcclResult (*reduce)(const void* from, void* to, std::size_t count, NcclType type, NcclOp op, int root, NcclComm comm,
                       cudaStream_t stream);
  NcclResult (*all_reduce)(const void* from, void* to, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                           cudaStream_t stream);
  NcclResult (*reduce_scatter)(const void* from, void* to, std::size_t count, NcclType type, NcclOp op, NcclComm comm,
                               cudaStream_t stream);  // count: elements per rank
  NcclResult (*all_gather)(const void* from, void* to, std::size_t count, NcclType type, NcclComm comm,
                           cudaStream_t stream);
  NcclResult (*send)(const void* from, std::size_t count, NcclType type, int peer, NcclComm comm, cudaStream_t stream);
  NcclResult (*receive)(void* to, std::size_t count, NcclType type, int peer, NcclComm comm, cudaStream_t stream);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
};

struct NcclLibrary {
  const NcclApi* api = nullptr;
  std::string file;    // the loaded file
  std::string reason;  // why api is null
};

// The library of this process, loaded at the first call: the file that DP_NCCL_LIBRARY names, otherwise libnccl.so.2.
const NcclLibrary& nccl();
// For tests: replaces the library that nccl() returns.
void provide_nccl(NcclLibrary library);
std::string nccl_release(const NcclApi& api);  // "2.28.9"

}  // namespace dp::kernels::cuda
