// Which convolutions go to oneDNN's Winograd, and that those that went there share their layouts with the direct ones.
#include "kernels/cpu/conv_winograd.h"

#include "kernels/cpu/cpu_op.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;

constexpr Window kSame{3, 1, 1};

bool pays(ConvPass pass, std::int64_t batch, std::int64_t channels, std::int64_t size) {
  return winograd_pays(pass, {channels, channels, 3, 3}, {batch, channels, size, size}, kSame);
}

TensorDesc any(const Shape& shape) {
  TensorDesc desc;
  desc.shape = shape;
  return desc;
}

}  // namespace

TEST_CASE("Winograd is taken where its tiles are well filled and enough of them share the transformed weights") {
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weights}) {
    CHECK(pays(pass, 64, 64, 32));
    CHECK(pays(pass, 1, 64, 32));
    CHECK(pays(pass, 64, 512, 4));
    CHECK_FALSE(pays(pass, 4, 512, 4));   // four tiles for 512 x 512 weights
    CHECK_FALSE(pays(pass, 64, 64, 5));   // 25 of 64 cells
    CHECK_FALSE(pays(pass, 64, 16, 32));  // few channels
    CHECK_FALSE(pays(pass, 0, 64, 32));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 3, 3}, {64, 64, 32, 32}, {3, 2, 1}));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 1, 1}, {64, 64, 32, 32}, {1, 1, 0}));
    CHECK_FALSE(winograd_pays(pass, {64, 64, 5, 5}, {64, 64, 32, 32}, {5, 1, 2}));
  }
  CHECK(pays(ConvPass::weights, 16, 512, 4));
  CHECK_FALSE(pays(ConvPass::data, 16, 512, 4));
}

TEST_CASE("convolutions whose layouts are prescribed run, whichever way is taken for them") {
  const CpuOpOptions options{1, false};
  const Shape x{4, 32, 16, 16}, w{64, 32, 3, 3}, y{4, 64, 16, 16};
  const auto free = make_cpu_op(Conv2dForward{any(x), any(w), any(y), kSame, true, true}, options);
  const auto t = free->tensors();
  const auto data = make_cpu_op(Conv2dBackwardData{t[2], any(w), t[0], kSame}, options);
  const auto weights = make_cpu_op(Conv2dBackwardWeights{t[0], t[2], any(w), kSame, true}, options);
  INFO(free->implementation() << " " << data->implementation() << " " << weights->implementation());
  CHECK(data->tensors()[2].layout == t[0].layout);
  CHECK(weights->tensors()[1].layout == t[2].layout);
#if defined(__AVX512F__)
  for (const HostOp* op : {free.get(), data.get(), weights.get()})
    if (free->implementation().find("wino") != std::string::npos)  // oneDNN 2 has it, oneDNN 3 has not
      CHECK(op->implementation().find("wino") != std::string::npos);
  if (free->implementation().find("wino") != std::string::npos)  // one order of the weights serves both directions
    CHECK(data->tensors()[1].layout == t[1].layout);
#endif
}
