// Common parts of the oneDNN ops: the engine, and a primitive with prebuilt arguments.
#pragma once

#include <omp.h>

#include <dnnl.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_layout.h"
#include "kernels/cpu/cpu_op.h"
#include "kernels/op_args.h"

namespace dp::kernels {

const dnnl::engine& dnnl_engine();     // one per process
dnnl::primitive_attr op_attributes();  // the caller provides the scratchpad

// Whether oneDNN chose its reference loops, hundreds of times slower than its other implementations.
template <typename PrimitiveDesc>
bool is_naive(const PrimitiveDesc& pd) {
  return std::string_view(pd.impl_info_str()).find("ref") != std::string_view::npos;
}

// Sets the calling thread's number of OpenMP threads, without dynamic teams, for the lifetime of this object.
class OmpThreads {
 public:
  explicit OmpThreads(int threads) : before_(omp_get_max_threads()), dynamic_(omp_get_dynamic()) {
    omp_set_num_threads(threads);
    omp_set_dynamic(0);
  }
  ~OmpThreads() {
    omp_set_num_threads(before_);
    omp_set_dynamic(dynamic_);
  }
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_, dynamic_;
};

// A primitive and its memory objects. run() sets pointers and allocates no memory of its own.
class DnnlCall {
 public:
  DnnlCall(const dnnl::primitive& primitive, const DnnlDesc& scratchpad);
  void add_input(int id, const DnnlDesc& md) { add(id, md, false); }
  void add_output(int id, const DnnlDesc& md) { add(id, md, true); }
  std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }
  // Pointers in the order of the add calls.
  void run(int threads, std::span<void* const> pointers, void* scratchpad);

 private:
  struct Arg {
    dnnl::memory memory;
    std::size_t bytes;
    bool output;
  };
  void add(int id, const DnnlDesc& md, bool output);

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<Arg> args_;  // the scratchpad is the first
  std::vector<dnnl_exec_arg_t> call_;
  std::size_t scratchpad_bytes_ = 0;
};

// An op that is one primitive. The primitive's pointers are the op's args in order, without an absent bias.
class DnnlOp : public HostOp {
 public:
  template <typename PrimitiveDesc>
  DnnlOp(const dnnl::primitive& primitive, const PrimitiveDesc& pd, int threads)
      : call_(primitive, pd.scratchpad_desc()),
        threads_(threads),
        implementation_(pd.impl_info_str()),
        naive_(is_naive(pd)) {}
  DnnlOp& input(int id, const DnnlDesc& md) { return call_.add_input(id, md), *this; }
  DnnlOp& output(int id, const DnnlDesc& md) { return call_.add_output(id, md), *this; }
  // The primitive does not take this argument.
  DnnlOp& skip(Position arg) { return skipped_ = arg, *this; }
  DnnlOp& tensors_are(std::vector<TensorDesc> tensors) { return tensors_ = std::move(tensors), *this; }

  void execute(std::span<void* const> args, void* workspace) override;
  std::size_t workspace_bytes() const override { return call_.scratchpad_bytes(); }
  std::string implementation() const override { return implementation_; }
  bool is_fallback() const override { return naive_; }

 private:
  DnnlCall call_;
  int threads_;
  Position skipped_;
  std::string implementation_;
  bool naive_;
};

}  // namespace dp::kernels
