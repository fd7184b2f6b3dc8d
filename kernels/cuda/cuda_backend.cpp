#include "kernels/cuda/cuda_backend.h"

#include "dp/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/describe_devices.h"
#include "kernels/cuda/nccl_communicator.h"
#include "kernels/cuda/p2p_communicator.h"
#include "kernels/cuda/remembered.h"

namespace dp::kernels::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  DeviceProbe probe() const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return {count, {}};
    cudaGetLastError();
    return {0, "the CUDA runtime sees no device: " + cuda::describe(error == cudaSuccess ? cudaErrorNoDevice : error)};
  }

  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    const DeviceProbe found = probe();
    if (device.index < 0 || device.index >= found.count)
      throw Error(ErrorCode::usage,
                  to_string(device) + " does not exist: there are " + std::to_string(found.count) + " GPUs");
    return std::make_unique<CudaContext>(device, options);
  }

  std::vector<std::unique_ptr<Communicator>> make_communicators(std::string_view name,
                                                                std::span<Context* const> contexts) override {
    for (Context* const context : contexts)
      if (context->device().kind != DeviceKind::cuda)
        throw Error(ErrorCode::usage, to_string(context->device()) + " can not exchange data with GPUs: it is none");
    if (name == "nccl") return make_nccl_communicators(contexts);
    if (name == "p2p") return make_p2p_communicators(contexts);
    throw Error(ErrorCode::usage, "GPUs exchange data through p2p or nccl, not through '" + std::string(name) + "'");
  }

  std::string describe() const override { return describe_devices(probe().count); }

  std::string_view default_communicator(std::span<const Device> devices, bool fixed_order) const override {
    if (devices.size() < 2 || fixed_order) return "p2p";
    std::vector<int> indices;
    for (const Device& device : devices) indices.push_back(device.index);
    return nccl_refusal(indices).empty() ? "nccl" : "p2p";
  }
  std::unique_ptr<Communicator> join(std::string_view name, Context& context, Rendezvous& world) override {
    if (name == "nccl") return join_nccl(context, world);
    throw Error(ErrorCode::usage,
                "GPUs of several processes exchange data through nccl, not through '" + std::string(name) + "'");
  }
  std::string_view default_communicator(const Rendezvous&) const override { return "nccl"; }

  std::optional<double> remembered(std::span<const Device> devices, const std::string& what) override {
    return cuda::remembered(devices, what);
  }
  void remember(std::span<const Device> devices, const std::string& what, double value) override {
    cuda::remember(devices, what, value);
  }

  std::size_t free_memory(Device device) const override {
    std::size_t free = 0, total = 0;
    bind_device(device.index);
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return free;
  }
};

}  // namespace

Backend& cuda_backend() {
  static CudaBackend backend;
  return backend;
}

}  // namespace dp::kernels::cuda
