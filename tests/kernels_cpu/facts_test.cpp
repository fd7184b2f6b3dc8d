// What CPU ops report about themselves: the name of the implementation and the size of the workspace.
#include <map>

#include "dp/error.h"
#include "kernels_cpu/cpu_case.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

std::size_t workspace_of(const OpDesc& desc) { return make_cpu_op(desc, {})->workspace_bytes(); }

}  // namespace

TEST_CASE("our own CPU ops name their implementation") {
  const std::map<std::string, std::string> names = {{"max_pool2d_forward", "own:tiles"},
                                                    {"max_pool2d_backward", "own:tiles"},
                                                    {"relu_forward", "own:simd"},
                                                    {"relu_backward", "own:simd"},
                                                    {"function_forward", "own:simd"},
                                                    {"function_backward", "own:simd"},
                                                    {"dropout", "own:philox"},
                                                    {"add_forward", "own:simd"},
                                                    {"batch_norm_moments", "own:simd"},
                                                    {"batch_norm_merge", "own:double"},
                                                    {"batch_norm_track", "own:double"},
                                                    {"batch_norm_running", "own:double"},
                                                    {"batch_norm_forward", "own:simd"},
                                                    {"batch_norm_backward_sums", "own:simd"},
                                                    {"batch_norm_backward", "own:simd"},
                                                    {"batch_norm_fold", "own:runs"},
                                                    {"softmax_cross_entropy", "own:double"},
                                                    {"fill", "plain"},
                                                    {"accumulate", "own:simd"},
                                                    {"moving_average", "own:simd"},
                                                    {"sgd", "own:simd"},
                                                    {"grad_norm_partials", "own:simd"},
                                                    {"grad_norm_finish", "plain"},
                                                    {"gather_images", "plain"}};
  std::size_t found = 0;
  for (const CpuCase& c : every_cpu_op(1)) {
    const auto name = names.find(c.name);
    if (name == names.end()) continue;
    INFO(c.name);
    CHECK(c.op->implementation() == name->second);
    ++found;
  }
  CHECK(found == names.size());
}

TEST_CASE("the name of a max-pool shows whether its windows are tiles, forward and backward") {
  const TensorDesc x = with_tag({2, 3, 6, 6}, Tag::nchw), y = any_layout({2, 3, 3, 3});
  const auto name = [](const OpDesc& desc) { return make_cpu_op(desc, {})->implementation(); };
  CHECK(name(MaxPool2dForward{x, y, {2, 2, 0}}) == "own:tiles");
  CHECK(name(MaxPool2dForward{x, y, {3, 2, 1}}) == "own:windows");
  CHECK(name(MaxPool2dForward{x, any_layout({2, 3, 5, 5}), {2, 1, 0}}) == "own:windows");
  CHECK(name(MaxPool2dForward{x, any_layout({2, 3, 4, 4}), {2, 2, 1}}) == "own:windows");
  CHECK(name(MaxPool2dBackward{y, x, {2, 2, 0}}) == "own:tiles");
  CHECK(name(MaxPool2dBackward{y, x, {3, 2, 1}}) == "own:windows");
}

TEST_CASE("our own CPU ops reserve the workspace that they use and no more") {
  constexpr std::size_t kGroups = 16, kChannels = 24;  // with padding
  const TensorDesc x = with_tag({20, 20, 4, 4}, Tag::nChw8c);
  CHECK(workspace_of(BatchNormMoments{x}) == 2 * kGroups * kChannels * sizeof(double));
  CHECK(workspace_of(BatchNormBackwardSums{x}) == 2 * kGroups * kChannels * sizeof(double) + kChannels * sizeof(float));
  CHECK(workspace_of(BatchNormForward{x}) == 3 * kChannels * sizeof(float));
  CHECK(workspace_of(BatchNormBackward{x}) == 4 * kChannels * sizeof(float));
  CHECK(workspace_of(BatchNormMerge{.channels = 7, .parts = 3}) == 2 * 7 * sizeof(double));
  CHECK(workspace_of(BatchNormTrack{{{.channels = 3}, {.channels = 9}, {.channels = 5}}}) == 2 * 9 * sizeof(double));
  CHECK(workspace_of(BatchNormRunning{.channels = 7}) == 0);
  CHECK(workspace_of(BatchNormFold{with_tag({20, 5, 3, 3}, Tag::oihw)}) == 20 * sizeof(float));
  CHECK(workspace_of(BatchNormFold{with_tag({20, 5, 3, 3}, Tag::OIhw8i8o)}) == kChannels * sizeof(float));
  CHECK(workspace_of(SoftmaxCrossEntropy{.batch = 5, .classes = 3}) == 5 * (sizeof(double) + sizeof(std::int64_t)));
  CHECK(workspace_of(ReluForward{x}) == 0);
  CHECK(workspace_of(AddForward{x}) == 0);
  CHECK(workspace_of(Reorder{x, x}) == 0);
  CHECK(workspace_of(GradNormPartials{.count = 5000}) == 0);
  CHECK(workspace_of(Orthogonalize{.rows = 5, .columns = 3}) == (2 * 3 * 3 + 5 * 3) * sizeof(float));
}

TEST_CASE("an op that oneDNN rejects names itself, its shapes and oneDNN's reason") {
  TensorDesc x = with_tag({2, 3, 9, 9}, Tag::nchw);
  x.shape = {2, 3, 8, 8};  // not that of its layout
  const OpDesc desc = Conv2dForward{x, any_layout({4, 3, 3, 3}), any_layout({2, 4, 8, 8}), {3, 1, 1}, false, false};
  try {
    make_cpu_op(desc, {});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(error.what() ==
          "conv2d_forward cannot be created for" + shapes_of(desc) + ": oneDNN: could not reshape a memory descriptor");
    CHECK(shapes_of(desc).find("(2, 3, 8, 8)") != std::string::npos);
  }
}

TEST_CASE("emulated bfloat16 ops are fallbacks, our own float32 ops are not") {
  const TensorDesc x{{4, 8}, DType::bf16, {}}, w{{3, 8}, DType::bf16, {}}, y{{4, 3}, DType::bf16, {}};
  const CpuOpOptions emulated{.bfloat16 = true, .emulate_bfloat16 = true};
  CHECK(make_cpu_op(LinearForward{x, w, y}, emulated)->is_fallback());
  CHECK_FALSE(make_cpu_op(ReluForward{x}, emulated)->is_fallback());
  CHECK_FALSE(
      make_cpu_op(LinearForward{any_layout({4, 8}), any_layout({3, 8}), any_layout({4, 3})}, {})->is_fallback());
}
