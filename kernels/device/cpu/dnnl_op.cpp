#include "kernels/device/cpu/dnnl_op.h"

#include <array>

#include "kernels/device/cpu/announce.h"
#include "kernels/device/host/cores.h"

namespace dp::kernels {

const dnnl::engine& dnnl_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::primitive_attr op_attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

dnnl::primitive_attr relu_attributes(bool relu, bool training) {
  dnnl::primitive_attr attr = op_attributes();
  if (!relu) return attr;
  dnnl::post_ops ops;
  dnnl_compat::append_relu(ops, training ? 0 : dnnl_compat::kReluSlope);
  attr.set_post_ops(ops);
  return attr;
}

DnnlCall::DnnlCall(const dnnl::primitive& primitive, const DnnlDesc& scratchpad)
    : primitive_(primitive), stream_(dnnl_engine()), scratchpad_bytes_(scratchpad.get_size()) {
  add(DNNL_ARG_SCRATCHPAD, scratchpad, true);
}

void DnnlCall::add(int id, const DnnlDesc& md, bool output) {
  args_.push_back({dnnl::memory(md, dnnl_engine(), nullptr), md.get_size(), output});
  call_.push_back({id, args_.back().memory.get()});
}

void DnnlCall::run(int threads, std::span<void* const> pointers, void* scratchpad) {
  // The caller may be inside a parallel region, or not be the bound thread. oneDNN would wait for missing threads.
  if (threads > 1 && omp_get_active_level() >= omp_get_max_active_levels())
    throw Error(ErrorCode::usage, "a replica of " + std::to_string(threads) + " threads cannot run within " +
                                      largest_team()->source + "; call the engine outside of it, or use one thread");
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  const auto set = [](Arg& arg, void* pointer) {
    arg.memory.set_data_handle(pointer);
    arg.output ? announce_write(pointer, arg.bytes) : announce_read(pointer, arg.bytes);
  };
  if (scratchpad_bytes_ > 0) set(args_[0], scratchpad);
  for (std::size_t i = 1; i < args_.size(); ++i) set(args_[i], pointers[i - 1]);
  // The C function takes the prebuilt arguments; the C++ one would build a vector in each call.
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(call_.size()), call_.data());
  if (status == dnnl_out_of_memory)
    throw Error(ErrorCode::device, "out of host memory; use a smaller batch or fewer replicas");
  if (status != dnnl_success)
    throw Error(ErrorCode::device, "oneDNN failed to run a primitive, status " + std::to_string(status));
}

void DnnlOp::execute(std::span<void* const> args, void* workspace) {
  std::array<void*, kMaxOpArgs> pointers{};
  std::size_t count = 0;
  for (std::size_t i = 0; i < args.size(); ++i)
    if (static_cast<int>(i) != skipped_.index) pointers[count++] = args[i];
  call_.run(threads_, {pointers.data(), count}, workspace);
}

}  // namespace dp::kernels
