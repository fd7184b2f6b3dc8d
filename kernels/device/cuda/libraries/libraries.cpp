#include "kernels/device/cuda/libraries/libraries.h"

#include <numeric>

#include "kernels/device/cuda/owner.h"

namespace dp::kernels::cuda {

std::int64_t sample_alignment(const TensorDesc& tensor) {
  const auto sample = tensor.shape.without_first().numel() * static_cast<std::int64_t>(size_of(tensor.type));
  return std::gcd(sample, kTensorAlignment);
}

Libraries::~Libraries() {
  if ((cudnn_handle_ == nullptr && cublaslt_handle_ == nullptr) || handles_abandoned) return;
  if (cudaSetDevice(device_) != cudaSuccess) cudaGetLastError();
  if (cudnn_handle_ != nullptr) cudnn_->destroy(cudnn_handle_);
  if (cublaslt_handle_ != nullptr) cublaslt_->destroy(cublaslt_handle_);
}

CudnnHandle Libraries::cudnn_handle() {
  if (cudnn_ == nullptr) {
    cudnn_ = cudnn().api;
    if (cudnn_ != nullptr && cudnn_->create(&cudnn_handle_) != CudnnStatus::success) cudnn_handle_ = nullptr;
    cudaGetLastError();  // clears errors that the library left behind
  }
  return cudnn_handle_;
}

CublasLtHandle Libraries::cublaslt_handle() {
  if (cublaslt_ == nullptr) {
    cublaslt_ = cublaslt().api;
    if (cublaslt_ != nullptr && cublaslt_->create(&cublaslt_handle_) != CublasStatus::success)
      cublaslt_handle_ = nullptr;
    cudaGetLastError();
  }
  return cublaslt_handle_;
}

CudnnStatus Libraries::use_stream(cudaStream_t stream) { return cudnn_->set_stream(cudnn_handle_, stream); }

std::string library_versions() {
  const CudnnApi* const dnn = cudnn().api;
  const CublasLtApi* const blas = cublaslt().api;
  return "cudnn " + (dnn == nullptr ? "none" : cudnn_release(*dnn)) + "; cublaslt " +
         (blas == nullptr ? "none" : cublaslt_release(*blas));
}

std::string describe_libraries() {
  const CudnnLibrary& dnn = cudnn();
  const CublasLtLibrary& blas = cublaslt();
  return "cuDNN       " + (dnn.api == nullptr ? "none: " + dnn.reason : cudnn_release(*dnn.api) + ", " + dnn.file) +
         "\ncuBLASLt    " +
         (blas.api == nullptr ? "none: " + blas.reason : cublaslt_release(*blas.api) + ", " + blas.file) + "\n";
}

}  // namespace dp::kernels::cuda
