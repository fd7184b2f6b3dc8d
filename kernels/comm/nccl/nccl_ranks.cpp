// Creates NCCL communicators: in one process, or across processes through Rendezvous.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "dp/error.h"
#include "kernels/comm/nccl/nccl_communicator.h"
#include "kernels/device/cuda/check.h"

namespace dp::kernels::cuda {
namespace {

// NCCL reads its environment at its first call. By default it connects the ranks for an algorithm at the first call
// that uses it. That allocates memory while peers may already wait in a kernel (docs/decisions/0028).
const NcclApi& library() {
  ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  if (nccl().api == nullptr)
    throw Error(ErrorCode::usage,
                "nccl cannot be used: " + nccl().reason + "; install NCCL, or set DP_NCCL_LIBRARY to its file");
  return *nccl().api;
}

void check_nccl(const NcclApi& api, NcclResult result, const char* what) {
  if (result != NcclResult::success)
    throw Error(ErrorCode::device, std::string("NCCL: ") + what + " failed: " + api.get_error_string(result));
}

// NCCL's own switch for several ranks on one GPU. It exists since 2.30 (NCCL user guide, "Environment Variables").
constexpr const char* kMultiRank = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr int kFirstMultiRank = 23000;
bool allows_shared_gpus(const NcclApi& api) {
  const char* const value = std::getenv(kMultiRank);
  int version = 0;
  return value != nullptr && std::string_view(value) == "1" && api.get_version(&version) == NcclResult::success &&
         version >= kFirstMultiRank;
}

std::unique_ptr<NcclLink> link(const NcclApi& api, NcclComm comm, CudaContext& context) {
  return std::make_unique<NcclLink>(api, comm, context.device(), context.graphs(), context.abort());
}

// What each rank sends to all ranks: its GPU, its error if it cannot take part, and, from rank 0, the NCCL id.
struct Introduction {
  NcclId id{};
  bool may_share_gpu = false;
  std::array<char, 96> gpu{};  // unique across hosts: "host 0000:01:00.0"
  std::array<char, 256> problem{};
};

template <std::size_t Size>
void put(std::array<char, Size>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), Size - 1));
}

std::string gpu_of(const CudaContext& context) {
  char host[64] = "", bus[32] = "";
  gethostname(host, sizeof host - 1);
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, context.device().index), "reading the bus id");
  return std::string(host) + " " + bus;
}

Introduction introduce(const CudaContext& context, int rank) {
  Introduction mine;
  try {
    put(mine.gpu, gpu_of(context));
    const NcclApi& api = library();
    mine.may_share_gpu = allows_shared_gpus(api);
    if (rank == 0) check_nccl(api, api.get_unique_id(&mine.id), "starting");
  } catch (const Error& error) {
    put(mine.problem, error.what());
  }
  return mine;
}

// Throws the same Error on every rank.
void check_introductions(const std::vector<Introduction>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].problem[0] != '\0')
      throw Error(ErrorCode::usage, "rank " + std::to_string(rank) + ": " + all[rank].problem.data());
    for (std::size_t other = 0; other < rank; ++other)
      if (all[rank].gpu == all[other].gpu && !(all[rank].may_share_gpu && all[other].may_share_gpu))
        throw Error(ErrorCode::usage, "nccl requires one GPU per rank: ranks " + std::to_string(other) + " and " +
                                          std::to_string(rank) + " both use the GPU at " + all[rank].gpu.data() +
                                          "; start one rank per GPU");
  }
}

// Calls each kind of collective once with every type, on all ranks of this process, and waits. NCCL loads and allocates
// at first calls. Here only this thread launches work, so nothing can deadlock.
void warm_up(const NcclApi& api, NcclWatch& watch, std::span<Context* const> contexts, int first_rank, int size) {
  constexpr NcclType kTypes[] = {NcclType::f32, NcclType::f64, NcclType::bf16, NcclType::u8};
  struct Rank {
    std::unique_ptr<Buffer> from, to;
    std::unique_ptr<Stream> stream;
  };
  const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(double);
  std::vector<Rank> ranks;
  for (Context* const context : contexts)
    ranks.push_back({context->allocate(bytes), context->allocate(bytes), context->make_stream()});
  // One group: a thread that serves several ranks must launch the calls of all of them together.
  const auto group = [&](const auto& calls) {
    check_nccl(api, api.group_start(), "warming up");
    NcclResult first = NcclResult::success;
    const auto keep = [&](NcclResult result) {
      if (first == NcclResult::success) first = result;
    };
    try {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        contexts[i]->bind_thread();
        const cudaStream_t stream = of_cuda(*ranks[i].stream).native();
        watch.link(i).enter("warming up", [&](NcclComm comm) {
          calls(comm, first_rank + static_cast<int>(i), ranks[i], stream, keep);
          return NcclResult::success;
        });
      }
    } catch (...) {
      api.group_end();
      throw;
    }
    keep(api.group_end());
    check_nccl(api, first, "warming up");
  };
  group([&](NcclComm comm, int, Rank& own, cudaStream_t stream, const auto& keep) {
    void *const from = own.from->data(), *const to = own.to->data();
    for (const NcclType type : kTypes) {
      keep(api.broadcast(from, to, 1, type, 0, comm, stream));
      keep(api.all_gather(from, to, 1, type, comm, stream));
      if (type == NcclType::u8) continue;
      keep(api.reduce(from, to, 1, type, NcclOp::sum, 0, comm, stream));
      keep(api.all_reduce(from, to, 1, type, NcclOp::sum, comm, stream));
      keep(api.reduce_scatter(from, to, 1, type, NcclOp::sum, comm, stream));
    }
  });
  // Every pair, for gather and scatter with any root.
  group([&](NcclComm comm, int rank, Rank& own, cudaStream_t stream, const auto& keep) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      keep(api.send(own.from->data(), 1, NcclType::u8, peer, comm, stream));
      keep(api.receive(static_cast<std::byte*>(own.to->data()) + peer, 1, NcclType::u8, peer, comm, stream));
    }
  });
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    contexts[i]->bind_thread();
    ranks[i].stream->synchronize();
    watch.link(i).check();
  }
}

}  // namespace

std::string nccl_refusal(std::span<const int> devices) {
  if (nccl().api == nullptr) return nccl().reason;
  if (allows_shared_gpus(*nccl().api)) return {};
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    for (std::size_t other = 0; other < rank; ++other)
      if (devices[rank] == devices[other])
        return "replicas " + std::to_string(other) + " and " + std::to_string(rank) +
               " share cuda:" + std::to_string(devices[rank]);
  return {};
}

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(std::span<Context* const> contexts) {
  std::vector<int> devices;
  for (Context* const context : contexts) devices.push_back(context->device().index);
  if (const std::string refusal = nccl_refusal(devices); !refusal.empty())
    throw Error(ErrorCode::usage, "nccl cannot be used: " + refusal + "; use --comm p2p");
  const NcclApi& api = library();
  const int size = static_cast<int>(contexts.size());
  NcclId id{};
  check_nccl(api, api.get_unique_id(&id), "starting");
  std::vector<NcclComm> comms(contexts.size());
  check_nccl(api, api.group_start(), "creating communicators");
  NcclResult first = NcclResult::success;
  for (int rank = 0; rank < size && first == NcclResult::success; ++rank) {
    bind_device(devices[static_cast<std::size_t>(rank)]);
    first = api.comm_init_rank(&comms[static_cast<std::size_t>(rank)], size, id, rank);
  }
  const NcclResult last = api.group_end();
  check_nccl(api, first != NcclResult::success ? first : last, "creating communicators");

  std::vector<std::unique_ptr<NcclLink>> links;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank)
    links.push_back(link(api, comms[rank], static_cast<CudaContext&>(*contexts[rank])));
  const auto watch = std::make_shared<NcclWatch>(std::move(links));
  warm_up(api, *watch, contexts, 0, size);
  std::vector<std::unique_ptr<Communicator>> handles;
  for (std::size_t rank = 0; rank < contexts.size(); ++rank)
    handles.push_back(std::make_unique<NcclCommunicator>(
        api, watch, watch->link(rank), static_cast<CudaContext&>(*contexts[rank]), static_cast<int>(rank), size));
  return handles;
}

std::unique_ptr<Communicator> join_nccl(Context& context, Rendezvous& rendezvous) {
  auto& own = static_cast<CudaContext&>(context);
  own.bind_thread();
  const Introduction mine = introduce(own, rendezvous.rank());
  std::vector<Introduction> all;
  for (const std::string& text : rendezvous.exchange({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    if (text.size() != sizeof(Introduction))
      throw Error(ErrorCode::usage,
                  "the ranks run different builds of the program; start the same build on every host");
    std::memcpy(&all.emplace_back(), text.data(), sizeof(Introduction));
  }
  check_introductions(all);
  const NcclApi& api = library();
  NcclComm comm = nullptr;
  check_nccl(api, api.comm_init_rank(&comm, rendezvous.size(), all.front().id, rendezvous.rank()),
             "joining the other ranks");
  std::vector<std::unique_ptr<NcclLink>> links;
  links.push_back(link(api, comm, own));
  const auto watch = std::make_shared<NcclWatch>(std::move(links));
  Context* const contexts[] = {&own};
  warm_up(api, *watch, contexts, rendezvous.rank(), rendezvous.size());
  return std::make_unique<NcclCommunicator>(api, watch, watch->link(0), own, rendezvous.rank(), rendezvous.size());
}

}  // namespace dp::kernels::cuda
