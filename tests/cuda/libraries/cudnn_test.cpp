// Convolutions through a simulated cuDNN that checks every descriptor.
#include "kernels/conv/cuda_cudnn.h"

#include "cuda/last.h"
#include "cuda/libraries/library_rig.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "kernels/device/cuda/runtime.h"
#include "kernels/layer_calls.h"
#include "simulated_cuda/cudnn/simulated_cudnn.h"
#include "simulated_cuda/runtime/devices.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;
using simt::candidate_of;
using simt::CudnnEngine;
using simt::SimulatedCudnn;

namespace {

struct ConvCase {
  Shape x;
  std::int64_t out;
  Window window;
  bool bias = false, relu = false, plain_x = false;
};

// The descriptors of one convolution in its three directions.
struct ConvDirections {
  Conv2dForward forward;
  Conv2dBackwardData data;
  Conv2dBackwardWeights weights;

  ConvDirections(const ConvCase& c, DType type) {
    const Shape w{c.out, c.x[1], c.window.kernel.h, c.window.kernel.h}, y = window_output(c.x, c.out, c.window);
    const TensorDesc x = c.plain_x ? TensorDesc{c.x, type, plain(c.x, type)} : last(c.x, type);
    forward = {x, last(w, type), last(y, type), c.window, c.bias, c.relu};
    data = {last(y, type), last(w, type), x, c.window};
    weights = {x, last(y, type), last(w, DType::f32), c.window, c.bias};
  }
};

Conv2dForward small_conv(DType type = DType::f32) {
  return ConvDirections({{2, 8, 6, 6}, 12, {3, 1, 1}}, type).forward;
}

// `wide`: whether engines write float32 weight gradients from 16 bits.
void check_conv(LibraryRig& rig, const ConvCase& c, DType type, std::size_t expected_candidates, bool wide = true) {
  INFO("x " << to_string(c.x) << " out " << c.out << " stride " << c.window.stride.h << " " << to_string(type));
  Random random(7, RandomUse::synthetic);
  const ConvDirections d(c, type);
  const HostTensor x = rounded(random_tensor(c.x, random), type),
                   w = rounded(random_tensor(d.forward.w.shape, random), type),
                   dy = rounded(random_tensor(d.forward.y.shape, random), type), b = random_tensor({c.out}, random);
  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = conv2d(oracle, x, w, c.bias ? &b : nullptr, dy, c.window, c.relu, Layouts::plain);
  const TensorDesc vector{{c.out}, DType::f32, plain({c.out}, DType::f32)};
  const DeviceTensor at_x = rig.upload(x, d.forward.x), at_w = rig.upload(w, d.forward.w),
                     at_dy = rig.upload(dy, d.forward.y), at_b = rig.upload(b, vector);
  const auto candidates = [&](const OpDesc& desc, std::size_t kinds = 1) {
    auto found = cudnn_candidates(desc, rig.options);
    CHECK(found.size() == kinds * expected_candidates);
    return found;
  };
  for (const Candidate& candidate : candidates(d.forward)) {
    const auto op = candidate.make();
    REQUIRE(op);
    CHECK(op->implementation() == candidate.name);
    const DeviceTensor y = rig.poisoned(op->tensors()[2]);
    rig.run(*op, {at_x.data(), at_w.data(), c.bias ? at_b.data() : nullptr, y.data()});
    CHECK(relative_error(rig.download(y), expected.y) <= tolerance(type));
  }
  for (const Candidate& candidate : candidates(d.data)) {
    const auto op = candidate.make();
    REQUIRE(op);
    const DeviceTensor dx = rig.poisoned(op->tensors()[2]);
    rig.run(*op, {at_dy.data(), at_w.data(), dx.data()});
    CHECK(relative_error(rig.download(dx), expected.dx) <= tolerance(type));
  }
  std::size_t widened = 0;
  for (const Candidate& candidate : candidates(d.weights, type != DType::f32 && wide ? 2 : 1)) {
    const auto op = candidate.make();
    REQUIRE(op);
    const bool widens = candidate.name.ends_with(" widened");
    widened += widens;
    CHECK(op->tensors()[2].type == DType::f32);
    const DeviceTensor dw = rig.poisoned(op->tensors()[2]), db = rig.poisoned(vector);
    rig.run(*op, {at_x.data(), at_dy.data(), dw.data(), d.weights.bias ? db.data() : nullptr});
    CHECK(relative_error(rig.download(dw), expected.dw) <= (widens ? tolerance(type) : tolerance(DType::f32)));
    if (d.weights.bias) CHECK(relative_error(rig.download(db), expected.db) <= 1e-5);
  }
  CHECK(widened == (type == DType::f32 ? 0 : expected_candidates));
}

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

const ConvCase kConvCases[] = {{{2, 8, 6, 6}, 12, {3, 1, 1}, true, true},
                               {{3, 5, 7, 9}, 13, {3, 2, 1}, true, false},
                               {{2, 16, 5, 4}, 8, {1, 2, 0}, false, true},
                               {{1, 3, 8, 8}, 4, {7, 2, 3}, false, false, true},
                               {{2, 1, 9, 7}, 5, {5, 1, 2}, true, true}};

}  // namespace

TEST_CASE("cudnn: convolutions of every direction, type and odd shape agree with the reference") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::plain, CudnnEngine::needs_workspace});
  {
    LibraryRig rig;
    for (const ConvCase& c : kConvCases)
      for (const DType type : kTypes) check_conv(rig, c, type, 2);
    CHECK(cudnn.handles() == 1);
  }
  CHECK(cudnn.descriptors() == 0);
  CHECK(cudnn.handles() == 0);
}

TEST_CASE("cudnn: weight gradients are also widened from 16 bits, and only so if no engine writes float32") {
  SimulatedGpus machine(1);
  SimulatedCudnn cudnn({CudnnEngine::plain, CudnnEngine::needs_workspace});
  cudnn.refuse_wide_weight_gradients();
  LibraryRig rig;
  for (const ConvCase& c : kConvCases) {
    check_conv(rig, c, DType::bf16, 2, /*wide=*/false);
    check_conv(rig, c, DType::f16, 2, /*wide=*/false);
    check_conv(rig, c, DType::f32, 2);
  }
}

TEST_CASE("cudnn: engines that round or use another algorithm are candidates only if options allow it") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn(
      {CudnnEngine::tensor_core, CudnnEngine::winograd, CudnnEngine::nondeterministic, CudnnEngine::plain});
  LibraryRig rig;
  const std::string plain = candidate_of(CudnnEngine::plain), tf32 = candidate_of(CudnnEngine::tensor_core) + " tf32",
                    winograd = candidate_of(CudnnEngine::winograd), other = candidate_of(CudnnEngine::nondeterministic);
  const auto candidates = [&](DType type) { return candidate_names(cudnn_candidates(small_conv(type), rig.options)); };
  CHECK(candidates(DType::f32) == std::vector{other, plain});
  CHECK(candidates(DType::bf16) == std::vector{candidate_of(CudnnEngine::tensor_core), other, plain});
  rig.options.fast_convolutions = true;
  CHECK(candidates(DType::f32) == std::vector{winograd, other, plain});
  rig.options.fast_convolutions = false, rig.options.tf32 = true;
  CHECK(candidates(DType::f32) == std::vector{tf32, other, plain});
  CHECK(cudnn_candidates(small_conv(), rig.options).front().make()->rounds_to_tf32());
  rig.options.tf32 = false, rig.options.deterministic = true;
  CHECK(candidates(DType::f32) == std::vector{plain});  // a deterministic run has a single candidate
}

TEST_CASE("cudnn: plans that are refused or need too much memory are not candidates") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::refuses, CudnnEngine::hungry, CudnnEngine::plain});
  LibraryRig rig;
  const std::vector<Candidate> candidates = cudnn_candidates(small_conv(), rig.options);
  REQUIRE(candidates.size() == 3);
  CHECK(candidates[0].make() == nullptr);
  CHECK(candidates[1].make() == nullptr);
  CHECK(candidates[2].make() != nullptr);
}

TEST_CASE("cudnn: no candidates without the library, on an unsupported device, or for other ops") {
  SimulatedGpus machine(1);
  {
    LibraryRig rig;
    CHECK(cudnn_candidates(small_conv(), rig.options).empty());
    CHECK(library_versions() == "cudnn none; cublaslt none");
    CHECK(describe_libraries().find("cuDNN       none: it is not simulated here\n") == 0);
  }
  SimulatedCudnn cudnn;
  CHECK(library_versions() == "cudnn 9.19.0; cublaslt none");
  CHECK(describe_libraries().find("cuDNN       9.19.0, a stand-in\n") == 0);
  LibraryRig rig;
  CHECK(cudnn_candidates(ReluForward{last({2, 8, 6, 6}, DType::f32)}, rig.options).empty());
  CHECK(cudnn_candidates(small_conv(), CudaOpOptions{}).empty());
  CHECK(cudnn_candidates(small_conv(), rig.options).size() == 1);
  cudnn.refuse_devices();
  LibraryRig refused;
  CHECK(cudnn_candidates(small_conv(), refused.options).empty());
}

TEST_CASE("cudnn: equal pointers are set once, whatever the number of runs") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn;
  LibraryRig rig;
  const Conv2dForward d = small_conv();
  const auto op = cudnn_candidates(d, rig.options).front().make();
  const DeviceTensor x = rig.upload(zeros(d.x.shape), d.x), w = rig.upload(zeros(d.w.shape), d.w),
                     y = rig.poisoned(d.y), other = rig.poisoned(d.y);
  const auto context = backend(DeviceKind::cuda).open({DeviceKind::cuda, 0}, {});
  const auto stream = context->make_stream(), second = context->make_stream();
  for (int i = 0; i < 10; ++i)
    for (const DeviceTensor& to : {y, other}) {
      void* const args[] = {x.data(), w.data(), nullptr, to.data()};
      op->run(i < 5 ? *stream : *second, args, nullptr);
      stream->synchronize(), second->synchronize();
    }
  CHECK(cudnn.variant_packs() == 2);
  CHECK(cudnn.runs() == std::vector<std::string>(20, "engine 0, forward"));
}

TEST_CASE("cudnn: a failure at run time names the call, the problem and the remedy") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::fails, CudnnEngine::plain});
  LibraryRig rig;
  const Conv2dForward d = small_conv();
  const DeviceTensor x = rig.upload(zeros(d.x.shape), d.x), w = rig.upload(zeros(d.w.shape), d.w),
                     y = rig.poisoned(d.y);
  const std::vector<Candidate> candidates = cudnn_candidates(d, rig.options);
  try {
    rig.run(*candidates[0].make(), {x.data(), w.data(), nullptr, y.data()});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK(error.what() ==
          std::string("cuDNN failed in conv2d_forward (cudnn:eng9 k2=7) on cuda:0: CUDNN_STATUS_EXECUTION_FAILED "
                      "(planted); set DP_CUDNN_LIBRARY=none to disable cuDNN"));
  }
  CHECK_THROWS_WITH(
      rig.run(*candidates[1].make(), {static_cast<std::byte*>(x.data()) + 4, w.data(), nullptr, y.data()}),
      Catch::Contains("is not aligned to 16 bytes"));
}

TEST_CASE("cudnn: a handle that is used or destroyed while another device is current is reported") {
  const SimulatedGpus gpus(2);
  const SimulatedCudnn library;
  const CudnnApi& api = *cuda::cudnn().api;
  CudnnHandle handle = nullptr;
  REQUIRE(api.create(&handle) == CudnnStatus::success);
  const StreamHandle stream = make_stream_handle();
  simt::set_current_device(1);
  CHECK(api.set_stream(handle, stream.get()) == CudnnStatus::success);
  CHECK(api.destroy(handle) == CudnnStatus::success);
  simt::set_current_device(0);
  CHECK(simt::take_reports() ==
        std::vector<std::string>{"cuDNN: a handle of cuda:0 gets a stream while cuda:1 is current",
                                 "cuDNN: a handle of cuda:0 is destroyed while cuda:1 is current"});
}
