// Tiny kernels, one primitive each: every thread writes what it sees.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::simt::test {

enum class Shuffle { index, up, down, exclusive_or };

// out[thread] = x[thread] shuffled among groups of `width` lanes.
void shuffle_lanes(Shuffle kind, const int* x, int* out, int threads, int selector, int width, cudaStream_t stream);
// out[3 t], .. : ballot, any and all of x[t] != 0 over the warp.
void vote_lanes(const int* x, unsigned* out, int threads, cudaStream_t stream);
// out[0..7]: what atomics leave behind after each of `threads` threads has done them with its number.
void update_atomically(int* out, int threads, cudaStream_t stream);
void count_around(unsigned* counter, unsigned limit, int threads, cudaStream_t stream);
void add_doubles(double* sum, int threads, cudaStream_t stream);
// out[i] = the place of the thread among all: blocks and threads of three dimensions.
void write_places(int* out, dim3 grid, dim3 block, cudaStream_t stream);
// y[t] = x[t] by cp.async of `bytes` (4, 8 or 16) where t < valid, else 0; one thread per element of that size.
void copy_asynchronously(const unsigned* x, unsigned* y, int bytes, int threads, int valid, cudaStream_t stream);
// y[t] = x[threads - 1 - t] through dynamic shared memory beside a static array and a scalar.
void reverse_in_shared(const float* x, float* y, int threads, cudaStream_t stream);
// Four 8x8 matrices of 16 bits, from rows to what lane t holds of each: out[4 t ..].
void load_matrices(const unsigned short* rows, unsigned* out, bool transposed, cudaStream_t stream);
// d = a b of 16-bit floats, a 16x16 by rows, b 16x8 by columns; bfloat16 or IEEE's.
void multiply_matrices(bool bfloat, const unsigned short* a, const unsigned short* b, float* d, cudaStream_t stream);
// out[t]: the pair x[2 t], x[2 t + 1] rounded to 16 bits each.
void pack_pairs(bool bfloat, const float* x, unsigned* out, int pairs, cudaStream_t stream);
void unpack_pairs(const unsigned* pairs, float* out, int count, cudaStream_t stream);  // of float16
// out: a list of values that the C library does not have by that name.
inline constexpr int kMathValues = 24;
void compute_math(float* out, cudaStream_t stream);
void trap(cudaStream_t stream);

}  // namespace dp::simt::test
