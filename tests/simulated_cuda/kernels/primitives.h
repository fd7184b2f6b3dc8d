// Tiny kernels for one primitive each. Every thread writes what it observes.
#pragma once

#include <cuda_runtime_api.h>

namespace dp::simt::test {

enum class Shuffle { index, up, down, exclusive_or };

// out[thread] = x[thread] shuffled within groups of `width` lanes.
void shuffle_lanes(Shuffle kind, const int* x, int* out, int threads, int selector, int width, cudaStream_t stream);
// out[3 t] and the next two: ballot, any and all of x[t] != 0 over the warp.
void vote_lanes(const int* x, unsigned* out, int threads, cudaStream_t stream);
// out[0..7]: results of atomics. Each of `threads` threads applies them with its index.
void update_atomically(int* out, int threads, cudaStream_t stream);
void count_around(unsigned* counter, unsigned limit, int threads, cudaStream_t stream);
void add_doubles(double* sum, int threads, cudaStream_t stream);
// out[i] = the global index of the thread, for three-dimensional grids and blocks.
void write_places(int* out, dim3 grid, dim3 block, cudaStream_t stream);
// y[t] = x[t] by cp.async of `bytes` (4, 8 or 16) for t < valid, else 0. One thread per element of that size.
void copy_asynchronously(const unsigned* x, unsigned* y, int bytes, int threads, int valid, cudaStream_t stream);
// y[t] = x[threads - 1 - t] through dynamic shared memory, next to a static array and a scalar.
void reverse_in_shared(const float* x, float* y, int threads, cudaStream_t stream);
// ldmatrix of four 8x8 matrices of 16-bit values, given by rows. out[4 t ..]: the fragments of lane t.
void load_matrices(const unsigned short* rows, unsigned* out, bool transposed, cudaStream_t stream);
// d = a b. a: 16x16, row-major; b: 16x8, column-major; elements are bfloat16 or float16.
void multiply_matrices(bool bfloat, const unsigned short* a, const unsigned short* b, float* d, cudaStream_t stream);
// out[t]: the pair x[2 t], x[2 t + 1], each rounded to 16 bits.
void pack_pairs(bool bfloat, const float* x, unsigned* out, int pairs, cudaStream_t stream);
void unpack_pairs(const unsigned* pairs, float* out, int count, cudaStream_t stream);  // from float16
// out: results of CUDA math functions that the C library does not have under that name.
inline constexpr int kMathValues = 24;
void compute_math(float* out, cudaStream_t stream);
void trap(cudaStream_t stream);

}  // namespace dp::simt::test
