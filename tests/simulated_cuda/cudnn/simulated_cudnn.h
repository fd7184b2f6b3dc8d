// A stand-in for cuDNN on the simulated CUDA. It computes convolutions on the simulated devices, as stream work. It is
// stricter than cuDNN: it reports everything that cuDNN's headers and documentation forbid, even if cuDNN itself would
// accept it.
#pragma once

#include <string>
#include <vector>

#include "kernels/device/cuda/libraries/cudnn_api.h"

namespace dp::simt {

// Simulated peculiarities of an engine. An engine's number is its position here.
enum class CudnnEngine {
  plain,
  needs_workspace,   // needs a small workspace and overwrites all of it
  slow,              // only by its name: tests invent its time
  wrong,             // results are 2 % wrong
  hungry,            // needs a workspace of 1 GiB
  nondeterministic,  // has the numerical note "nondeterministic"
  refuses,           // plan creation fails
  tensor_core,       // rounds float32 to TF32
  winograd,          // has the numerical note "winograd"
  fails,             // execution fails
  loses_nan,         // ReLU drops NaN, whatever the NaN propagation attribute
  compiles,          // its plans compile kernels; the next ones too
  compiles_too,
  compiles_as_well
};

// cuDNN is available while this object exists. Its reports are in simt::take_reports().
class SimulatedCudnn {
 public:
  // The engines that the heuristics return, in that order. The fallback heuristics return only the plain one.
  explicit SimulatedCudnn(std::vector<CudnnEngine> engines = {CudnnEngine::plain});
  ~SimulatedCudnn();
  SimulatedCudnn(const SimulatedCudnn&) = delete;
  SimulatedCudnn& operator=(const SimulatedCudnn&) = delete;

  void refuse_devices();                  // cudnnCreate fails from now on
  void refuse_wide_weight_gradients();    // float32 gradients of 16-bit operands
  void refuse_norm_sums();                // the reductions of batch normalisation's backward pass
  void fuse_as_seen();                    // fuses batch normalisation only where cuDNN 9.19 has engines on an H200
  std::vector<std::string> runs() const;  // so far: "engine 3, forward"
  int descriptors() const;                // that exist now
  int handles() const;
  int variant_packs() const;  // made so far
  int plans() const;          // made so far
};

// Its name as an algorithm: "cudnn:eng3 k2=7".
std::string candidate_of(CudnnEngine engine);

}  // namespace dp::simt
