// A stand-in for cuDNN over the simulated CUDA. It computes convolutions on the simulated devices, as work of streams, and is stricter
// than cuDNN: what its headers and pages forbid is reported, whether cuDNN would find it or not.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/vendor/cudnn/cudnn_api.h"

namespace dp::simt {

// What is peculiar of an engine. Its number is its place here.
enum class CudnnEngine {
  plain,
  needs_workspace,   // a little, and writes all over it
  slow,              // by 30 ms
  wrong,             // by two per cent
  hungry,            // for a GiB
  nondeterministic,  // says that it is
  refuses,           // when a plan is made
  tensor_core,       // float32 is rounded to TF32
  winograd,          // says that it is
  fails,             // when it runs
  loses_nan,         // in ReLU, whatever it is told
  compiles,          // says that plans compile kernels; the next ones likewise
  compiles_too,
  compiles_as_well
};

// Between its construction and its end cuDNN is there. What it has reported is among simt::take_reports().
class SimulatedCudnn {
 public:
  // Those that the heuristics name, in that order; for the fallback heuristics only the plain one.
  explicit SimulatedCudnn(std::vector<CudnnEngine> engines = {CudnnEngine::plain});
  ~SimulatedCudnn();
  SimulatedCudnn(const SimulatedCudnn&) = delete;
  SimulatedCudnn& operator=(const SimulatedCudnn&) = delete;

  void refuse_devices();                // cudnnCreate fails from now on
  void refuse_wide_weight_gradients();  // float32 from 16 bits
  void refuse_norm_sums();              // of a batch normalisation's backward pass
  void fuse_as_seen();  // batch normalisation only where cuDNN 9.19 was seen to have engines for an H200
  std::vector<std::string> runs() const;  // so far: "engine 3, forward"
  int descriptors() const;                // that exist now
  int handles() const;
  int variant_packs() const;  // made so far
  int plans() const;          // made so far
};

// Its name in ways: "cudnn:eng3 k2=7".
std::string way_of(CudnnEngine engine);

}  // namespace dp::simt
