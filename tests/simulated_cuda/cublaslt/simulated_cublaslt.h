// A stand-in for cuBLASLt over the simulated CUDA. It multiplies matrices on the simulated devices, as work of streams, and is stricter
// than cuBLASLt: what its header and pages forbid is reported.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/vendor/cublaslt_api.h"

namespace dp::simt {

// What is peculiar of an algorithm. Its id is its number here.
enum class CublasLtAlgorithm : std::int32_t {
  plain,
  needs_workspace,  // a little, and writes all over it
  slow,             // by 30 ms
  wrong,            // by two per cent
  splits,           // the sum, and adds up in place
  fails,            // when it runs
  loses_nan         // in ReLU
};

// Between its construction and its end cuBLASLt is there. What it has reported is among simt::take_reports().
class SimulatedCublasLt {
 public:
  // Those that the heuristics name, in that order.
  explicit SimulatedCublasLt(std::vector<CublasLtAlgorithm> algorithms = {CublasLtAlgorithm::plain});
  ~SimulatedCublasLt();
  SimulatedCublasLt(const SimulatedCublasLt&) = delete;
  SimulatedCublasLt& operator=(const SimulatedCublasLt&) = delete;

  void refuse_devices();                  // cublasLtCreate fails from now on
  void refuse_bias_gradients();           // the epilogue
  std::vector<std::string> runs() const;  // so far: "algorithm 0, 5x3x7, epilogue 6"
  int handles() const;                    // that exist now
  int descriptors() const;
};

}  // namespace dp::simt
