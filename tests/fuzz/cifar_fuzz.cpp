#include "fuzz/cifar_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dp::test::run_cifar_case({data, size});
  return 0;
}
