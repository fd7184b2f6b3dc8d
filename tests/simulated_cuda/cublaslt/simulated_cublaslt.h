// A stand-in for cuBLASLt on the simulated CUDA. It multiplies matrices on the simulated devices, as stream work. It is
// stricter than cuBLASLt: it reports everything that cuBLASLt's header and documentation forbid.
#pragma once

#include <string>
#include <vector>

#include "kernels/device/cuda/libraries/cublaslt.h"

namespace dp::simt {

// Simulated peculiarities of an algorithm. Its id is its value here.
enum class CublasLtAlgorithm : std::int32_t {
  plain,
  needs_workspace,  // needs a small workspace and overwrites all of it
  slow,             // only by its name: tests invent its time
  wrong,            // results are 2 % wrong
  splits,           // split-K with an in-place reduction
  fails,            // execution fails
  loses_nan         // ReLU drops NaN
};

// cuBLASLt is available while this object exists. Its reports are in simt::take_reports().
class SimulatedCublasLt {
 public:
  // The algorithms that the heuristics return, in that order.
  explicit SimulatedCublasLt(std::vector<CublasLtAlgorithm> algorithms = {CublasLtAlgorithm::plain});
  ~SimulatedCublasLt();
  SimulatedCublasLt(const SimulatedCublasLt&) = delete;
  SimulatedCublasLt& operator=(const SimulatedCublasLt&) = delete;

  void refuse_devices();                  // cublasLtCreate fails from now on
  void refuse_bias_gradients();           // the bias gradient epilogues
  std::vector<std::string> runs() const;  // so far: "algorithm 0, 5x3x7, epilogue 6"
  int handles() const;                    // that exist now
  int descriptors() const;
};

}  // namespace dp::simt
