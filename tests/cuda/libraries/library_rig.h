// Runs a single candidate of a layer on a simulated GPU, from host tensors to host tensors, for any float type.
#pragma once

#include <string>
#include <vector>

#include "kernels/device/cuda/libraries/libraries.h"
#include "kernels/op_rig.h"
#include "kernels/tuning/candidates.h"
#include "support/catch.h"

namespace dp::test {

// Rounds to the nearest values of the type.
HostTensor rounded(const HostTensor& tensor, DType type);
// The tolerance for a result of this type, relative to the norm.
double tolerance(DType result);
std::vector<std::string> candidate_names(const std::vector<kernels::cuda::Candidate>& candidates);

class LibraryRig {
 public:
  LibraryRig() : rig_(DeviceKind::cuda) { options.libraries = std::make_shared<kernels::cuda::Libraries>(0); }

  // Copies row-major values into the layout and type of `desc`.
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
