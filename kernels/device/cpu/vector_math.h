// Vector forms of functions in loops with `omp simd`. A file that includes it has the compile options of
// elementwise/cpu_functions.cpp (kernels/CMakeLists.txt).
#pragma once

#include <cmath>

// glibc has vector forms of these functions. Its headers declare them only with -ffast-math, which drops NaN.
#if DP_VECTOR_MATH
extern "C" {
float expf(float) noexcept __attribute__((simd("notinbranch"), const));
float expm1f(float) noexcept __attribute__((simd("notinbranch"), const));
float tanhf(float) noexcept __attribute__((simd("notinbranch"), const));
float erff(float) noexcept __attribute__((simd("notinbranch"), const));
}
#endif
