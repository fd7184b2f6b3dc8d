// Convolutions fused with batch normalisation by the simulated cuDNN, compared with the unfused ops.
#include <cmath>

#include "cuda/last.h"
#include "cuda/libraries/library_rig.h"
#include "cuda/simulated_gpus.h"
#include "kernels/conv/cuda_cudnn.h"
#include "kernels/layer_calls.h"
#include "kernels/norm/cuda_library.h"
#include "kernels/tuning/trial.h"
#include "simulated_cuda/cudnn/simulated_cudnn.h"

using namespace dp;
using namespace dp::kernels;
using namespace dp::kernels::cuda;
using namespace dp::test;
using simt::candidate_of;
using simt::CudnnEngine;
using simt::SimulatedCudnn;

namespace {

constexpr DType kLow[] = {DType::bf16, DType::f16};

struct NormConvCase {
  Shape x;
  std::int64_t out;
  Window window;
};
const NormConvCase kNormConvCases[] = {
    {{2, 8, 6, 6}, 16, {3, 1, 1}}, {{3, 16, 7, 5}, 8, {3, 2, 1}}, {{2, 24, 4, 4}, 8, {1, 2, 0}}};

TensorDesc vector(std::int64_t count, DType type) { return {{count}, type, plain({count}, type)}; }

struct Descs {
  TensorDesc x, w, y, dw;
  Window window;

  Descs(const NormConvCase& c, DType type)
      : x(last(c.x, type)),
        w(last({c.out, c.x[1], c.window.kernel.h, c.window.kernel.h}, type)),
        y(last(window_output(c.x, c.out, c.window), type)),
        dw(last(w.shape, DType::f32)),
        window(c.window) {}

  NormConv2dForward forward(bool norm, bool moments) const { return {x, w, y, window, norm, moments}; }
  NormConv2dBackwardWeights weights() const { return {x, y, dw, window}; }
  enum Mask { open, given, renormalized };
  NormConv2dBackwardData data(Mask mask, bool add) const {
    return {y, w, x, window, mask != open, add, mask == renormalized};
  }
  std::vector<OpDesc> all() const {
    std::vector<OpDesc> descs{forward(false, true), forward(true, false), forward(true, true), weights()};
    for (const bool add : {false, true})
      for (const Mask mask : {open, given, renormalized}) descs.emplace_back(data(mask, add));
    return descs;
  }
};

// An op's arguments with values as in training: the statistics are those of x.
class Arguments {
 public:
  Arguments(LibraryRig& rig, const OpDesc& desc, double mean = 0.5) : rig_(rig), list_(trial_arguments(desc)) {
    Random random(7, RandomUse::synthetic);
    for (const TrialArgument& argument : list_) {
      const auto count = static_cast<std::int64_t>(argument.elements);
      HostTensor values = random_tensor({count}, random);
      if (argument.type == DType::f64 && !argument.written) {  // statistics
        const std::size_t channels = argument.elements / 2;
        for (std::size_t i = 0; i < argument.elements; ++i)
          values.values[i] = i == 0 ? 64 : i <= channels ? values.values[i] * mean : 1.5 + values.values[i];
      }
      values_.push_back(std::move(values));
    }
  }
  HostTensor& operator[](std::size_t argument) { return values_[argument]; }

  // The op's outputs by argument; empty for inputs.
  std::vector<HostTensor> results(CudaOp& op) {
    std::vector<std::unique_ptr<Buffer>> inputs;
    std::vector<DeviceTensor> outputs(list_.size());
    std::vector<void*> pointers(list_.size());
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const TrialArgument& argument = list_[i];
      if (argument.elements == 0) continue;
      const TensorDesc desc = vector(static_cast<std::int64_t>(argument.elements), argument.type);
      if (argument.written)
        outputs[i] = rig_.poisoned(desc), pointers[i] = outputs[i].data();
      else if (argument.type == DType::f64)
        pointers[i] =
            inputs.emplace_back(rig_.rig().upload_bytes(values_[i].values.data(), argument.elements * 8))->data();
      else
        outputs[i] = rig_.upload(values_[i], desc), pointers[i] = outputs[i].data();
    }
    rig_.rig().run(op, pointers);
    std::vector<HostTensor> results(list_.size());
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (!list_[i].written || list_[i].elements == 0) continue;
      if (list_[i].type != DType::f64) {
        results[i] = rig_.download(outputs[i]);
        continue;
      }
      results[i] = zeros({static_cast<std::int64_t>(list_[i].elements)});
      rig_.rig().download_bytes(results[i].values.data(), *outputs[i].memory, list_[i].elements * 8);
    }
    return results;
  }
  const std::vector<TrialArgument>& list() const { return list_; }

 private:
  LibraryRig& rig_;
  std::vector<TrialArgument> list_;
  std::vector<HostTensor> values_;
};

HostTensor piece_of(const HostTensor& tensor, std::size_t begin, std::size_t count) {
  const auto from = tensor.values.begin() + static_cast<std::ptrdiff_t>(begin);
  return {{static_cast<std::int64_t>(count)}, {from, from + static_cast<std::ptrdiff_t>(count)}};
}

// `tolerance`: relative to the norm of each piece of each result. The unfused ops round their intermediates to 16 bits.
// A 16-bit scale or offset has the same rounding error for a whole channel, which sums do not average away.
void check_results(const Arguments& arguments, const std::vector<HostTensor>& actual,
                   const std::vector<HostTensor>& expected, double tolerance) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    std::size_t begin = 0;
    const TrialArgument& argument = arguments.list()[i];
    if (!argument.written || argument.elements == 0) continue;
    for (const std::size_t piece : argument.pieces.empty() ? std::vector{argument.elements} : argument.pieces) {
      INFO("argument " << i << " from " << begin);
      CHECK(relative_error(piece_of(actual[i], begin, piece), piece_of(expected[i], begin, piece)) <= tolerance);
      begin += piece;
    }
  }
}

// Args: stats, weight, bias, scale, offset.
class ScaleAndOffset final : public CudaOp {
 public:
  ScaleAndOffset(DType type, std::int64_t channels) : type_(type), channels_(channels) {}

 protected:
  void enqueue(cudaStream_t stream, std::span<void* const> args, void*) override {
    enqueue_scale_and_offset(stream, type_, args[0], args[1], args[2], args[3], args[4], channels_);
  }

 private:
  DType type_;
  std::int64_t channels_;
};

std::unique_ptr<CudaOp> in_order(const OpDesc& desc) {
  return std::visit([](const auto& d) { return make(d, CudaOpOptions{}); }, desc);
}

}  // namespace

TEST_CASE("cudnn: fused candidates of every form and both 16-bit types agree with the unfused ops") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::plain, CudnnEngine::needs_workspace});
  LibraryRig rig;
  for (const DType type : kLow)
    for (const NormConvCase& c : kNormConvCases)
      for (const OpDesc& desc : Descs(c, type).all()) {
        INFO(name_of(desc) << " " << to_string(type) << " x " << to_string(c.x) << " stride " << c.window.stride.h);
        Arguments arguments(rig, desc);
        const auto baseline = in_order(desc);
        const std::vector<HostTensor> expected = arguments.results(*baseline);
        const std::vector<Candidate> candidates = cudnn_candidates(desc, rig.options);
        CHECK(candidates.size() == 2);
        for (const Candidate& candidate : candidates) {
          INFO(candidate.name);
          CHECK(candidate.name.ends_with(" fused"));
          const auto op = candidate.make();
          REQUIRE(op);
          CHECK(op->implementation() == candidate.name);
          for (std::size_t i = 0; i < 3; ++i) CHECK(op->tensors()[i].layout.name == baseline->tensors()[i].layout.name);
          check_results(arguments, arguments.results(*op), expected, 2 * tolerance(type));
        }
      }
}

TEST_CASE("cudnn: fused candidates are those observed with cuDNN 9.19") {
  SimulatedGpus machine(1);
  SimulatedCudnn cudnn;
  cudnn.fuse_as_seen(), cudnn.refuse_wide_weight_gradients();
  LibraryRig rig;
  const std::string plain = candidate_of(CudnnEngine::plain) + " fused";
  const Descs low(kNormConvCases[0], DType::f16), strided(kNormConvCases[1], DType::f16);
  const auto candidates = [&](const OpDesc& desc) { return candidate_names(cudnn_candidates(desc, rig.options)); };
  for (const OpDesc& desc : Descs(kNormConvCases[0], DType::bf16).all()) CHECK(candidates(desc).empty());
  for (const OpDesc& desc : Descs({{2, 12, 6, 6}, 16, {3, 1, 1}}, DType::f16).all()) CHECK(candidates(desc).empty());
  for (const OpDesc& desc : low.all()) {
    INFO(name_of(desc));
    const bool weights = std::holds_alternative<NormConv2dBackwardWeights>(desc);
    CHECK(candidates(desc) == std::vector{plain + (weights ? " widened" : "")});
    const auto op = cudnn_candidates(desc, rig.options).front().make();
    Arguments arguments(rig, desc);
    check_results(arguments, arguments.results(*op), arguments.results(*in_order(desc)), 2 * tolerance(DType::f16));
  }
  CHECK(candidates(strided.data(Descs::renormalized, false)) == std::vector{plain});
  CHECK(candidates(strided.data(Descs::open, false)) == std::vector{plain});
  CHECK(candidates(strided.data(Descs::given, false)).empty());
  CHECK(candidates(strided.data(Descs::renormalized, true)).empty());
}

TEST_CASE("cudnn: without an engine for the sums of a data gradient its mask is fused alone") {
  SimulatedGpus machine(1);
  SimulatedCudnn cudnn({CudnnEngine::plain, CudnnEngine::needs_workspace});
  cudnn.refuse_norm_sums();
  LibraryRig rig;
  for (const DType type : kLow)
    for (const NormConvCase& c : kNormConvCases) {
      const Descs descs(c, type);
      CHECK(cudnn_candidates(descs.data(Descs::open, false), rig.options).empty());
      for (const auto& [mask, add] :
           {std::pair(Descs::open, true), std::pair(Descs::given, false), std::pair(Descs::given, true),
            std::pair(Descs::renormalized, false), std::pair(Descs::renormalized, true)}) {
        INFO("mask " << mask << " add " << add << " " << to_string(type) << " x " << to_string(c.x));
        const OpDesc desc = descs.data(mask, add);
        Arguments arguments(rig, desc);
        const std::vector<HostTensor> expected = arguments.results(*in_order(desc));
        const std::vector<Candidate> candidates = cudnn_candidates(desc, rig.options);
        CHECK(candidates.size() == 2);
        for (const Candidate& candidate : candidates) {
          CHECK(candidate.name.ends_with(" fused mask"));
          check_results(arguments, arguments.results(*candidate.make()), expected, 2 * tolerance(type));
        }
      }
    }
}

TEST_CASE("cudnn: no fused candidates in float32, without anything to fuse, or without the library") {
  SimulatedGpus machine(1);
  {
    LibraryRig rig;
    for (const OpDesc& desc : Descs(kNormConvCases[0], DType::f16).all())
      CHECK(cudnn_candidates(desc, rig.options).empty());
  }
  const SimulatedCudnn cudnn;
  LibraryRig rig;
  for (const OpDesc& desc : Descs(kNormConvCases[0], DType::f32).all())
    CHECK(cudnn_candidates(desc, rig.options).empty());
  CHECK(cudnn_candidates(Descs(kNormConvCases[0], DType::f16).forward(false, false), rig.options).empty());
  CHECK(cudnn.handles() == 0);  // no handle was created either
  CHECK(cudnn_candidates(Descs(kNormConvCases[0], DType::f16).weights(), CudaOpOptions{}).empty());
}

TEST_CASE("cudnn: a wrong fused engine is rejected, and a correct one is accepted") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn({CudnnEngine::plain, CudnnEngine::wrong});
  LibraryRig rig;
  for (const OpDesc& desc : Descs(kNormConvCases[0], DType::f16).all()) {
    INFO(name_of(desc));
    const auto baseline = in_order(desc);
    const std::vector<Candidate> candidates = cudnn_candidates(desc, rig.options);
    REQUIRE(candidates.size() == 2);
    const auto right = candidates[0].make(), wrong = candidates[1].make();
    CudaOp* const ops[] = {baseline.get(), right.get(), wrong.get()};
    const std::vector<TrialResult> results = try_ops(trial_arguments(desc), ops);
    CHECK(results[1].verdict == Verdict::fit);
    CHECK(results[2].verdict == Verdict::differs);
  }
}

TEST_CASE("cudnn: the simulated cuDNN reports graphs whose operations do not fit each other") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn;
  LibraryRig rig;
  const CudnnTarget target{kernels::cuda::cudnn().api, rig.options.libraries->cudnn_handle()};
  const Descs d(kNormConvCases[0], DType::f16);
  const CudnnTensor x_spec = tensor_of(kCudnnX, d.x, true), y_spec = tensor_of(kCudnnY, d.y, true);
  const auto reports = [&](const auto& build) {
    CudnnGraphBuilder graph(target);
    const auto &x = graph.tensor(x_spec), &w = graph.tensor(tensor_of(kCudnnW, d.w, false)), &y = graph.tensor(y_spec),
               &z = graph.between(x_spec, CudnnType::f16), &sum = graph.tensor(per_channel(kCudnnSum, 16)),
               &squares = graph.tensor(per_channel(kCudnnSquares, 16));
    CHECK_THROWS_AS((build(graph, x, w, y, z, sum, squares), graph.finish()), CudnnRefusal);
    return simt::take_reports();
  };
  constexpr auto kForward = CudnnDirection::forward;
  using Reports = std::vector<std::string>;
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto& z, auto&, auto&) {
          graph.convolve(kForward, d.window, z, w, y), graph.relu(x, z);
        }) == Reports{"cuDNN: an operation reads what no operation before it computes"});
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto&, auto& sum, auto& squares) {
          graph.statistics(y, sum, squares), graph.convolve(kForward, d.window, x, w, y);
        }) == Reports{"cuDNN: an operation writes a tensor that the graph reads before"});
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto&, auto& sum, auto&) {
          graph.convolve(kForward, d.window, x, w, y), graph.statistics(y, sum, sum);
        }) == Reports{"cuDNN: two operations write one tensor"});
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto&, auto& sum, auto& squares) {
          graph.convolve(kForward, d.window, x, w, y), graph.statistics(x, sum, squares);
        }) == Reports{"cuDNN: statistics of another shape"});
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto& z, auto&, auto&) {
          graph.relu(x, z), graph.convolve(kForward, d.window, x, w, y);
        }) == Reports{"cuDNN: a graph whose result is virtual"});
  CHECK(reports([&](auto& graph, auto& x, auto& w, auto& y, auto& z, auto& sum, auto&) {
          graph.multiply(x, sum, z), graph.convolve(kForward, d.window, z, w, y);
        }) == Reports{"cuDNN: a pointwise operation's b of another shape"});
}

TEST_CASE("cudnn: 16-bit scale and offset lose only the rounding of the offset at the mean") {
  SimulatedGpus machine(1);
  LibraryRig rig;
  constexpr std::int64_t kChannels = 150;
  for (const DType type : kLow) {
    Random random(3, RandomUse::synthetic);
    const HostTensor weight = random_tensor({kChannels}, random), bias = random_tensor({kChannels}, random);
    HostTensor stats = random_tensor({1 + 2 * kChannels}, random);
    for (std::size_t i = 1; i <= kChannels; ++i) stats.values[i] *= 100;
    const auto at_stats = rig.rig().upload_bytes(stats.values.data(), stats.values.size() * sizeof(double));
    const DeviceTensor at_weight = rig.upload(weight, vector(kChannels, DType::f32)),
                       at_bias = rig.upload(bias, vector(kChannels, DType::f32)),
                       scale = rig.poisoned(vector(kChannels, type)), offset = rig.poisoned(vector(kChannels, type));
    ScaleAndOffset op(type, kChannels);
    rig.run(op, {at_stats->data(), at_weight.data(), at_bias.data(), scale.data(), offset.data()});
    const HostTensor scales = rig.download(scale), offsets = rig.download(offset);
    const double half_digit = type == DType::bf16 ? 0x1p-8 : 0x1p-11;
    for (std::size_t i = 0; i < kChannels; ++i) {
      const double mean = stats.values[1 + i], exact = stats.values[1 + kChannels + i] * weight.values[i];
      CHECK(std::abs(scales.values[i] - exact) <= half_digit * std::abs(exact) + 0x1p-25);
      CHECK(std::abs(mean * scales.values[i] + offsets.values[i] - bias.values[i]) <=
            1.001 * half_digit * std::abs(offsets.values[i]) + 0x1p-25);
    }
  }
}

TEST_CASE("cudnn: moments from sums of squares lose digits as the mean grows and are never negative") {
  SimulatedGpus machine(1);
  const SimulatedCudnn cudnn;
  LibraryRig rig;
  // y equals x: an identity convolution.
  const Descs descs({{4, 8, 16, 16}, 8, {1, 1, 0}}, DType::f16);
  const NormConv2dForward desc = descs.forward(false, true);
  const auto op = cudnn_candidates(desc, rig.options).front().make(), baseline = in_order(desc);
  for (const double mean : {0.0, 10.0, 100.0, 1000.0}) {
    INFO("mean " << mean);
    Arguments arguments(rig, desc);
    for (double& value : arguments[0].values) value += mean;
    for (std::size_t i = 0; i < arguments[4].values.size(); ++i) arguments[4].values[i] = i % 9 == 0;
    const HostTensor moments = arguments.results(*op)[6], exact = arguments.results(*baseline)[6];
    CHECK(moments.values[0] == 1024);
    // A sequential float32 sum of 1024 values is accurate to about 2^-19.
    CHECK(relative_error(piece_of(moments, 1, 8), piece_of(exact, 1, 8)) <= (mean == 0 ? 1e-4 : 2e-6));
    const double loss = 2e-6 * (1 + 3 * mean * mean);  // mean^2 / variance
    CHECK(relative_error(piece_of(moments, 9, 8), piece_of(exact, 9, 8)) <= loss);
    for (std::size_t i = 9; i < 17; ++i) CHECK(moments.values[i] >= 0);
  }
  Arguments constant(rig, desc);
  for (double& value : constant[0].values) value = 100.1;
  for (std::size_t i = 0; i < constant[4].values.size(); ++i) constant[4].values[i] = i % 9 == 0;
  const HostTensor moments = constant.results(*op)[6];
  for (std::size_t i = 9; i < 17; ++i) CHECK(moments.values[i] >= 0);
}
