// Compares the declarations of kernels/comm/nccl/nccl_api.h with NCCL's own header.
#include <nccl.h>

#include "kernels/comm/nccl/nccl_api.h"
#include "simulated_cuda/same_functions.h"
#include "support/catch.h"

namespace dp::test {

using namespace kernels::cuda;

template <>
struct Ours<ncclResult_t> {
  using type = NcclResult;
};
template <>
struct Ours<ncclDataType_t> {
  using type = NcclType;
};
template <>
struct Ours<ncclRedOp_t> {
  using type = NcclOp;
};
template <>
struct Ours<ncclUniqueId> {
  using type = NcclId;
};
template <>
struct Ours<const struct ncclComm> {
  using type = NcclRank;
};
template <>
struct Ours<struct ncclComm> {
  using type = NcclRank;
};

namespace {

static_assert(same<ncclGetVersion, decltype(NcclApi::get_version)>);
static_assert(same<ncclGetUniqueId, decltype(NcclApi::get_unique_id)>);
static_assert(same<ncclCommInitRank, decltype(NcclApi::comm_init_rank)>);
static_assert(same<ncclCommDestroy, decltype(NcclApi::comm_destroy)>);
static_assert(same<ncclCommAbort, decltype(NcclApi::comm_abort)>);
static_assert(same<ncclCommGetAsyncError, decltype(NcclApi::comm_get_async_error)>);
static_assert(same<ncclGetErrorString, decltype(NcclApi::get_error_string)>);
static_assert(same<ncclGetLastError, decltype(NcclApi::get_last_error)>);
static_assert(same<ncclBroadcast, decltype(NcclApi::broadcast)>);
static_assert(same<ncclReduce, decltype(NcclApi::reduce)>);
static_assert(same<ncclAllReduce, decltype(NcclApi::all_reduce)>);
static_assert(same<ncclReduceScatter, decltype(NcclApi::reduce_scatter)>);
static_assert(same<ncclAllGather, decltype(NcclApi::all_gather)>);
static_assert(same<ncclSend, decltype(NcclApi::send)>);
static_assert(same<ncclRecv, decltype(NcclApi::receive)>);
static_assert(same<ncclGroupStart, decltype(NcclApi::group_start)>);
static_assert(same<ncclGroupEnd, decltype(NcclApi::group_end)>);

}  // namespace

TEST_CASE("the backend's declarations match the sizes and numbers of NCCL's header") {
  CHECK(sizeof(ncclUniqueId) == sizeof(NcclId));
  CHECK(sizeof(ncclResult_t) == sizeof(NcclResult));
  CHECK(sizeof(ncclDataType_t) == sizeof(NcclType));
  CHECK(sizeof(ncclRedOp_t) == sizeof(NcclOp));
  CHECK(static_cast<int>(ncclUint8) == static_cast<int>(NcclType::u8));
  CHECK(static_cast<int>(ncclFloat32) == static_cast<int>(NcclType::f32));
  CHECK(static_cast<int>(ncclFloat64) == static_cast<int>(NcclType::f64));
  CHECK(static_cast<int>(ncclBfloat16) == static_cast<int>(NcclType::bf16));
  CHECK(static_cast<int>(ncclSum) == static_cast<int>(NcclOp::sum));
  CHECK(static_cast<int>(ncclSuccess) == static_cast<int>(NcclResult::success));
  CHECK(static_cast<int>(ncclInvalidUsage) == static_cast<int>(NcclResult::invalid_usage));
  CHECK(static_cast<int>(ncclRemoteError) == static_cast<int>(NcclResult::remote_error));
  CHECK(static_cast<int>(ncclInProgress) == static_cast<int>(NcclResult::in_progress));
}

}  // namespace dp::test
