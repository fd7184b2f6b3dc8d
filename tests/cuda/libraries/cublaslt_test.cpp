// Linear layers through a simulated cuBLASLt that checks every descriptor.
#include "kernels/linear/cuda_cublaslt.h"

#include "cuda/libraries/library_rig.h"
#include "cuda/simulated_gpus.h"
#include "dp/error.h"
#include "kernels/layer_calls.h"
#include "simulated_cuda/cublaslt/simulated_cublaslt.h"
#include "simulated_cuda/runtime/devices.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;
using simt::CublasLtAlgorithm;
using simt::SimulatedCublasLt;

namespace {

TensorDesc row_major(const Shape& shape, DType type) { return {shape, type, plain(shape, type)}; }

struct LinearCase {
  Shape x;
  std::int64_t out;
  bool bias = false, relu = false, channels_last = false;
};

struct LinearDirections {
  LinearForward forward;
  LinearBackwardData data;
  LinearBackwardWeights weights;

  LinearDirections(const LinearCase& c, DType type) {
    const Shape w{c.out, c.x.without_first().numel()}, y{c.x[0], c.out};
    const auto weights_of = [&](DType of) {
      return c.channels_last ? TensorDesc{w, of, linear_channels_last(w, c.x, of)} : row_major(w, of);
    };
    const TensorDesc x = c.channels_last ? TensorDesc{c.x, type, channels_last(c.x, type)} : row_major(c.x, type);
    forward = {x, weights_of(type), row_major(y, type), c.bias, c.relu};
    data = {row_major(y, type), weights_of(type), x};
    weights = {x, row_major(y, type), weights_of(DType::f32), c.bias};
  }
};

// The suffixes of the candidates' names.
using Endings = std::vector<std::string>;

Endings endings(const std::vector<Candidate>& candidates) {
  Endings result;
  for (const Candidate& candidate : candidates) {
    const std::string text = "cluster0";
    result.push_back(candidate.name.substr(candidate.name.find(text) + text.size()));
  }
  return result;
}

void check_linear(LibraryRig& rig, const LinearCase& c, DType type, const Endings& forward_endings,
                  const Endings& weight_endings) {
  INFO("x " << to_string(c.x) << " out " << c.out << " " << to_string(type) << " bias " << c.bias << " relu "
            << c.relu);
  Random random(8, RandomUse::synthetic);
  const LinearDirections d(c, type);
  const HostTensor x = rounded(random_tensor(c.x, random), type),
                   w = rounded(random_tensor(d.forward.w.shape, random), type),
                   dy = rounded(random_tensor(d.forward.y.shape, random), type), b = random_tensor({c.out}, random);
  OpRig oracle(DeviceKind::reference);
  const LayerResult expected = linear(oracle, x, w, c.bias ? &b : nullptr, dy, c.relu, Layouts::plain);
  const TensorDesc vector = row_major({c.out}, DType::f32);
  const DeviceTensor at_x = rig.upload(x, d.forward.x), at_w = rig.upload(w, d.forward.w),
                     at_dy = rig.upload(dy, d.forward.y), at_b = rig.upload(b, vector);
  const auto forward = cublaslt_candidates(d.forward, rig.options), data = cublaslt_candidates(d.data, rig.options),
             weights = cublaslt_candidates(d.weights, rig.options);
  CHECK(endings(forward) == forward_endings);
  for (const Candidate& candidate : forward) {
    const auto op = candidate.make();
    CHECK(op->implementation() == candidate.name);
    const DeviceTensor y = rig.poisoned(op->tensors()[2]);
    rig.run(*op, {at_x.data(), at_w.data(), c.bias ? at_b.data() : nullptr, y.data()});
    CHECK(relative_error(rig.download(y), expected.y) <= tolerance(type));
  }
  CHECK(data.size() == 1);
  for (const Candidate& candidate : data) {
    const auto op = candidate.make();
    const DeviceTensor dx = rig.poisoned(op->tensors()[2]);
    rig.run(*op, {at_dy.data(), at_w.data(), dx.data()});
    CHECK(relative_error(rig.download(dx), expected.dx) <= tolerance(type));
  }
  CHECK(endings(weights) == weight_endings);
  for (const Candidate& candidate : weights) {
    const auto op = candidate.make();
    const DeviceTensor dw = rig.poisoned(op->tensors()[2]), db = rig.poisoned(vector);
    rig.run(*op, {at_x.data(), at_dy.data(), dw.data(), c.bias ? db.data() : nullptr});
    CHECK(relative_error(rig.download(dw), expected.dw) <= tolerance(DType::f32));
    if (c.bias) CHECK(relative_error(rig.download(db), expected.db) <= 1e-5);
  }
}

const LinearCase kLinearCases[] = {
    {{3, 12}, 5, true, true}, {{7, 128}, 10, true, false},          {{5, 257}, 33, false, true},
    {{1, 1}, 1, true, false}, {{3, 8, 3, 5}, 13, true, true, true}, {{2, 6, 4, 4}, 7, true, false, false}};

LinearForward small_linear() { return LinearDirections(kLinearCases[0], DType::f32).forward; }

}  // namespace

TEST_CASE("cublaslt: linear layers of every direction, type and odd shape agree with the reference") {
  SimulatedGpus machine(1);
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::needs_workspace});
  {
    LibraryRig rig;
    for (const LinearCase& c : kLinearCases) {
      check_linear(rig, c, DType::f32, {""}, c.bias ? Endings{"", " own bias"} : Endings{""});
      // cuBLASLt adds a bias to a 16-bit result only if it has the result's type.
      for (const DType type : {DType::bf16, DType::f16})
        check_linear(rig, c, type, {c.bias ? " narrow bias" : ""}, c.bias ? Endings{"", " own bias"} : Endings{""});
    }
    CHECK(cublaslt.handles() == 1);
  }
  CHECK(cublaslt.handles() == 0);
  CHECK(cublaslt.descriptors() == 0);
}

TEST_CASE("cublaslt: our own kernel computes the bias gradient if the epilogue cannot") {
  SimulatedGpus machine(1);
  SimulatedCublasLt cublaslt;
  cublaslt.refuse_bias_gradients();
  LibraryRig rig;
  for (const LinearCase& c : kLinearCases) check_linear(rig, c, DType::f32, {""}, {c.bias ? " own bias" : ""});
}

TEST_CASE("cublaslt: bias and ReLU are fused with the product") {
  SimulatedGpus machine(1);
  const SimulatedCublasLt cublaslt;
  LibraryRig rig;
  check_linear(rig, {{3, 12}, 5, true, true}, DType::f32, {""}, {"", " own bias"});
  CHECK(cublaslt.runs() ==
        std::vector<std::string>{"algorithm 0, 5x3x12, epilogue 6", "algorithm 0, 12x3x5, epilogue 1",
                                 "algorithm 0, 12x5x3, epilogue 512", "algorithm 0, 12x5x3, epilogue 1"});
}

TEST_CASE("cublaslt: no candidates for reordered features, without the library, or without a device") {
  SimulatedGpus machine(1);
  {
    LibraryRig rig;
    CHECK(cublaslt_candidates(small_linear(), rig.options).empty());
  }
  SimulatedCublasLt cublaslt;
  LibraryRig rig;
  const Shape x{2, 6, 4, 4}, w{7, 96};
  const TensorDesc images{x, DType::f32, channels_last(x, DType::f32)}, matrix = row_major(w, DType::f32),
                                                                        y = row_major({2, 7}, DType::f32);
  CHECK(cublaslt_candidates(LinearForward{images, matrix, y}, rig.options).empty());
  CHECK(cublaslt_candidates(LinearBackwardData{y, matrix, images}, rig.options).empty());
  CHECK(cublaslt_candidates(LinearBackwardWeights{images, y, matrix}, rig.options).empty());
  CHECK(cublaslt_candidates(LinearForward{images, {w, DType::f32, {}}, y}, rig.options).size() ==
        1);  // any layout: in x's order
  CHECK(cublaslt_candidates(ReluForward{images}, rig.options).empty());
  CHECK(cublaslt_candidates(small_linear(), CudaOpOptions{}).empty());
  CHECK(library_versions() == "cudnn none; cublaslt 13.1.0");
  cublaslt.refuse_devices();
  LibraryRig refused;
  CHECK(cublaslt_candidates(small_linear(), refused.options).empty());
}

TEST_CASE("cublaslt: TF32 is used on request, and deterministic runs use no split-K") {
  SimulatedGpus machine(1);
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::splits, CublasLtAlgorithm::plain});
  LibraryRig rig;
  const auto candidates = [&] { return cublaslt_candidates(small_linear(), rig.options); };
  REQUIRE(candidates().size() == 2);
  CHECK(candidates()[0].name == "cublaslt:4 tile0 stages0 splits4 reduction0 swizzle0 option0 inner0 cluster0");
  CHECK(!candidates()[0].make()->rounds_to_tf32());
  rig.options.tf32 = true;
  CHECK(candidates()[0].name.ends_with("cluster0 tf32"));
  CHECK(candidates()[0].make()->rounds_to_tf32());
  rig.options.tf32 = false, rig.options.deterministic = true;
  REQUIRE(candidates().size() == 1);
  CHECK(candidates()[0].name.starts_with("cublaslt:0 "));
}

TEST_CASE("cublaslt: a failure at run time names the call, the problem and the remedy") {
  SimulatedGpus machine(1);
  const SimulatedCublasLt cublaslt({CublasLtAlgorithm::fails, CublasLtAlgorithm::plain});
  LibraryRig rig;
  const LinearForward d = small_linear();
  const DeviceTensor x = rig.upload(zeros(d.x.shape), d.x), w = rig.upload(zeros(d.w.shape), d.w),
                     y = rig.poisoned(d.y), b = rig.upload(zeros({5}), row_major({5}, DType::f32));
  const std::vector<Candidate> candidates = cublaslt_candidates(d, rig.options);
  try {
    rig.run(*candidates[0].make(), {x.data(), w.data(), b.data(), y.data()});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::device);
    CHECK_THAT(error.what(), Catch::StartsWith("cuBLASLt failed in linear_forward (cublaslt:5 ") &&
                                 Catch::EndsWith(") on cuda:0: the function failed to launch on the GPU; "
                                                 "set DP_CUBLASLT_LIBRARY=none to disable it"));
  }
  CHECK_THROWS_WITH(
      rig.run(*candidates[1].make(), {x.data(), static_cast<std::byte*>(w.data()) + 4, b.data(), y.data()}),
      Catch::Contains("is not aligned to 16 bytes"));
}

TEST_CASE("cublaslt: a handle that is destroyed while another device is current is reported") {
  const SimulatedGpus gpus(2);
  const SimulatedCublasLt library;
  const CublasLtApi& api = *cuda::cublaslt().api;
  CublasLtHandle handle = nullptr;
  REQUIRE(api.create(&handle) == CublasStatus::success);
  simt::set_current_device(1);
  CHECK(api.destroy(handle) == CublasStatus::success);
  simt::set_current_device(0);
  CHECK(simt::take_reports() ==
        std::vector<std::string>{"cuBLASLt: a handle of cuda:0 is destroyed while cuda:1 is current"});
}
