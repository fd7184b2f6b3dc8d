// What this processor has for bfloat16.
#pragma once

namespace dp::kernels {

// True if it has AVX512-BF16 or AMX, and oneDNN may use it (ONEDNN_MAX_CPU_ISA).
bool has_bfloat16();
// True if it has AMX, oneDNN may use it, and the system lets this process use its tiles.
bool has_amx();

}  // namespace dp::kernels
