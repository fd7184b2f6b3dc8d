// Runs single ways to compute a layer on a simulated GPU, with tensors of any float type, from host tensors to host tensors.
#pragma once

#include "kernels/cuda/tuning/candidates.h"
#include "kernels/cuda/vendor/libraries.h"
#include "kernels/op_rig.h"
#include "support/catch.h"

namespace dp::test {

// The nearest values that the type has.
HostTensor rounded(const HostTensor& tensor, DType type);
// Relative to the norm: how far a right result may be from the exact one.
double tolerance(DType result);

class LibraryRig {
 public:
  LibraryRig() : rig_(DeviceKind::cuda) { options.libraries = std::make_shared<kernels::cuda::Libraries>(0); }

  // Row-major values into the layout and type of `desc`.
  DeviceTensor upload(const HostTensor& tensor, const kernels::TensorDesc& desc);
  HostTensor download(const DeviceTensor& tensor);
  DeviceTensor poisoned(const kernels::TensorDesc& desc) { return rig_.poisoned(desc); }
  void run(kernels::Op& op, std::initializer_list<void*> args) { rig_.run(op, args); }
  OpRig& rig() { return rig_; }

  kernels::cuda::CudaOpOptions options;

 private:
  OpRig rig_;
};

}  // namespace dp::test
