#include "kernels/device/cpu/bfloat16.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <dnnl.hpp>

namespace dp::kernels {
namespace {

// The values of cpu_isa are sets of bits: a later one contains those that it extends.
bool extends(dnnl::cpu_isa least) {
  const auto bits = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), wanted = static_cast<unsigned>(least);
  return (bits & wanted) == wanted;
}

}  // namespace

bool has_bfloat16() {
  static const bool has = extends(dnnl::cpu_isa::avx512_core_bf16);
  return has;
}

bool has_amx() {
#if defined(__linux__) && defined(__x86_64__)
  static const bool has = [] {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of arch_prctl(2)
    return extends(dnnl::cpu_isa::avx512_core_amx) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

}  // namespace dp::kernels
