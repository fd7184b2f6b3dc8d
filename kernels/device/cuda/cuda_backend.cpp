#include "kernels/device/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <numeric>

#include "dp/error.h"
#include "kernels/comm/nccl/nccl_communicator.h"
#include "kernels/comm/p2p/p2p_communicator.h"
#include "kernels/comm/p2p/peers.h"
#include "kernels/device/cuda/context.h"
#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/tuning/tuner.h"

namespace dp::kernels::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  DeviceProbe probe() const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return {count, {}};
    cudaGetLastError();
    return {0,
            "the CUDA runtime reports no device: " + cuda::describe(error == cudaSuccess ? cudaErrorNoDevice : error)};
  }

  std::string identity(Device device) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device.index), "reading device properties");
    std::string text = "GPU";
    for (int i = 0; i < 16; ++i) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(properties.uuid.bytes[i]));
      text += (i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
    }
    return text;
  }

  std::unique_ptr<Context> open(Device device, const ContextOptions& options) override {
    require_device(device);
    return std::make_unique<CudaContext>(device, options);
  }

  std::vector<std::unique_ptr<Communicator>> make_communicators(std::string_view name,
                                                                std::span<Context* const> contexts) override {
    for (Context* const context : contexts)
      if (context->device().kind != DeviceKind::cuda)
        throw Error(ErrorCode::usage,
                    to_string(context->device()) + " cannot exchange data with GPUs: it is not a GPU");
    if (name == "nccl") return make_nccl_communicators(contexts);
    if (name == "p2p") return make_p2p_communicators(contexts);
    throw Error(ErrorCode::usage,
                "--comm " + std::string(name) + " requires CPU replicas; use --comm p2p or nccl for GPUs");
  }

  std::string describe() const override { return describe_devices(probe().count); }

  // NCCL with several GPUs in one process can deadlock inside a graph. p2p cannot. If p2p would copy through the host,
  // the default is NCCL with eager steps (docs/decisions/0027).
  CommunicatorChoice default_communicator(std::span<const Device> devices, bool fixed_order) const override {
    if (devices.size() < 2) return {"p2p", "one replica needs no communication"};
    if (fixed_order) return {"p2p", "logical shards require a fixed summation order, which nccl does not guarantee"};
    std::vector<int> indices;
    for (const Device& device : devices) require_device(device), indices.push_back(device.index);
    const std::string detours = describe_detours(indices, peer_paths(indices));
    if (detours.empty()) return {"p2p", "every pair of GPUs has verified direct access"};
    const std::string refusal = nccl_refusal(indices);
    if (refusal.empty()) return {"nccl", "p2p would copy between " + detours};
    return {"p2p", "nccl cannot be used: " + refusal};
  }
  std::unique_ptr<Communicator> join(std::string_view name, Context& context, Rendezvous& rendezvous) override {
    if (name == "nccl") return join_nccl(context, rendezvous);
    throw Error(ErrorCode::usage,
                "GPUs of several processes require communicator nccl, not '" + std::string(name) + "'");
  }
  CommunicatorChoice default_communicator(const Rendezvous&) const override {
    return {"nccl", "each rank is a process with one GPU"};
  }

  std::unique_ptr<Link> make_link(Context& sender, Context& receiver) override {
    return std::make_unique<CudaLink>(static_cast<CudaContext&>(sender), static_cast<CudaContext&>(receiver));
  }
  bool links_have_two_queues() const override { return true; }

  std::optional<double> remembered(std::span<const Device> devices, const std::string& what) override {
    return cuda::remembered(devices, what);
  }
  void remember(std::span<const Device> devices, const std::string& what, double value) override {
    cuda::remember(devices, what, value);
  }

  std::size_t free_memory(Device device) const override {
    std::size_t free = 0, total = 0;
    bind_device(device.index);
    check(cudaMemGetInfo(&free, &total), "reading the free memory");
    return free;
  }

 private:
  void require_device(const Device& device) const {
    const DeviceProbe found = probe();
    if (found.count == 0) throw Error(ErrorCode::device, to_string(device) + " cannot be used: " + found.reason);
    if (device.index < 0 || device.index >= found.count)
      throw Error(ErrorCode::usage,
                  to_string(device) + " does not exist: there " +
                      (found.count == 1 ? "is 1 GPU" : "are " + std::to_string(found.count) + " GPUs"));
  }
};

}  // namespace

Backend& cuda_backend() {
  static CudaBackend backend;
  return backend;
}

namespace {

// 13000: "13.0"
std::string release(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "reading device properties");
  char bus[32] = "";
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "reading the bus id");
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
         " multiprocessors, " + std::to_string(properties.totalGlobalMem >> 20) + " MiB, bus " + bus;
}

}  // namespace

std::string describe_devices(int count) {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "reading the driver version");
  check(cudaRuntimeGetVersion(&runtime), "reading the runtime version");
  std::string text =
      "CUDA        runtime " + release(runtime) + ", driver for " + release(driver) + "\n" + describe_libraries();
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  for (const int device : devices) text += "cuda:" + std::to_string(device) + "      " + describe_device(device) + "\n";
  const auto paths = peer_paths(devices);
  for (std::size_t reader = 0; reader < paths.size(); ++reader)
    for (std::size_t owner = 0; owner < paths.size(); ++owner)
      if (reader != owner)
        text += "peers       cuda:" + std::to_string(reader) + " reads cuda:" + std::to_string(owner) + ": " +
                to_string(paths[reader][owner]) + "\n";
  return text;
}

namespace {

// Multiply-adds per clock and multiprocessor: `f32` for float32; `low` for 16-bit floats with float32 accumulation on
// tensor cores, without sparsity. Sources: "Arithmetic Instructions" in the CUDA C++ Programming Guide, and the
// architectures' white papers.
struct Generation {
  int capability;
  double f32, low;
};
constexpr Generation kGenerations[] = {{75, 64, 512},   {80, 64, 1024},   {86, 128, 512},   {89, 128, 512},
                                       {90, 128, 2048}, {100, 128, 4096}, {103, 128, 4096}, {120, 128, 512}};

double attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "reading a device attribute");
  return value;
}

}  // namespace

Rates device_rates(int device, DType type) {
  const int capability = static_cast<int>(10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                                          attribute(cudaDevAttrComputeCapabilityMinor, device));
  for (const Generation& generation : kGenerations) {
    if (generation.capability != capability) continue;
    const double clock = 1e3 * attribute(cudaDevAttrClockRate, device);
    const double each = size_of(type) == 2 ? generation.low : generation.f32;
    const double bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
    return {2 * each * clock * attribute(cudaDevAttrMultiProcessorCount, device),
            2e3 * attribute(cudaDevAttrMemoryClockRate, device) * bits / 8, "by its clocks"};
  }
  return {};
}

}  // namespace dp::kernels::cuda
