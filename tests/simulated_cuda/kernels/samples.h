// Four kernels that together use all permitted device primitives, each with its launch function.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace dp::simt::test {

// Adds the sums and sums of squares of `pixels` rows of x to the arrays. NHWC; channels: a multiple of 64.
void channel_sums(const __nv_bfloat16* x, float* sums, float* squares, int pixels, int channels, cudaStream_t stream);
// c = a b, row-major; a: m x k, b: k x n; k and n: multiples of 4.
void matrix_product(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream);
// Losses and the gradients of the logits, one warp per row.
void cross_entropy(const float* logits, const int* labels, float* losses, float* gradient, int rows, int classes,
                   cudaStream_t stream);
// 3x3, padding 1, NHWC; w: [out][3][3][in]; in: a multiple of 32, out: of 64. Uses cp.async, ldmatrix and mma.
void convolution(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int images, int height, int width,
                 int in, int out, cudaStream_t stream);

}  // namespace dp::simt::test
