// Four kernels that use between them all that the device code may use; each with what starts it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace dp::simt::test {

// Sums and sums of squares over `pixels` rows of x (channels last; channels a multiple of 64), added to what is there.
void channel_sums(const __nv_bfloat16* x, float* sums, float* squares, int pixels, int channels, cudaStream_t stream);
// c = a b, by rows: a m x k, b k x n; k and n multiples of 4.
void matrix_product(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream);
// Losses and the gradient by the logits, a warp for each row.
void cross_entropy(const float* logits, const int* labels, float* losses, float* gradient, int rows, int classes,
                   cudaStream_t stream);
// 3x3, padding 1, NHWC; w [out][3][3][in]; in a multiple of 32, out of 64. cp.async, ldmatrix and mma.
void convolution(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y, int images, int height, int width,
                 int in, int out, cudaStream_t stream);

}  // namespace dp::simt::test
