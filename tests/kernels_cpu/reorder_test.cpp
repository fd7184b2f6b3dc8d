// Reorders that only some plans need, called on every processor.
#include <utility>
#include <vector>

#include "dp/error.h"
#include "dp/random.h"
#include "kernels/device/cpu/announce.h"
#include "kernels/device/cpu/cpu_op.h"
#include "kernels/low_float.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

TensorDesc low(const Shape& shape, Tag tag) { return with_tag(shape, DType::bf16, tag); }

std::unique_ptr<HostOp> reorder(const TensorDesc& src, const TensorDesc& dst, int threads = 1) {
  return make_cpu_op(Reorder{src, dst}, {.threads = threads, .bfloat16 = true});
}

std::vector<float> random_values(std::int64_t count) {
  Random random(93, RandomUse::synthetic);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = random.uniform(-1, 1);
  return values;
}

}  // namespace

TEST_CASE("float32 images of few channels are reordered to bfloat16 in nhwc by our own loop") {
  for (const Shape& shape : {Shape{3, 1, 28, 27}, Shape{2, 3, 5, 7}, Shape{5, 3, 40, 41}, Shape{4, 8, 33, 32}}) {
    const std::int64_t channels = shape[1], pixels = shape[2] * shape[3];
    const std::vector<float> src = random_values(shape.numel());
    std::vector<BFloat16> expected(src.size());
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      const std::int64_t n = i / (channels * pixels), c = i / pixels % channels;
      expected[static_cast<std::size_t>((n * pixels + i % pixels) * channels + c)] =
          from_float<BFloat16>(src[static_cast<std::size_t>(i)]);
    }
    for (const int threads : {1, 3}) {
      if (threads > 1 && kThreadSanitizer) continue;
      INFO(to_string(shape) << " on " << threads << " threads");
      const auto op = reorder(with_tag(shape, Tag::nchw), low(shape, Tag::nhwc), threads);
      CHECK(op->implementation() == "own:images");
      CHECK(op->tensors()[0].layout == with_tag(shape, Tag::nchw).layout);
      CHECK(op->tensors()[1].layout == low(shape, Tag::nhwc).layout);
      std::vector<BFloat16> dst(src.size() + 8, BFloat16{0xABCD}), whole = expected;
      whole.resize(dst.size(), BFloat16{0xABCD});
      void* const args[] = {const_cast<float*>(src.data()), dst.data()};
      op->execute(args, nullptr);
      CHECK(dst == whole);
    }
  }
}

TEST_CASE("other reorders do not use the loop for images") {
  const Shape three{2, 3, 5, 7}, nine{2, 9, 5, 7};
  const auto name = [](const TensorDesc& src, const TensorDesc& dst) { return reorder(src, dst)->implementation(); };
  CHECK(name(with_tag(nine, Tag::nchw), low(nine, Tag::nhwc)) != "own:images");  // many channels
  CHECK(name(with_tag(three, Tag::nhwc), low(three, Tag::nhwc)) == "own:simd");  // the same order
  CHECK(name(with_tag(three, Tag::nchw), low(three, Tag::nchw)) == "own:simd");
  CHECK(name(with_tag(three, Tag::nchw), with_tag(three, Tag::nhwc)) != "own:images");  // float32
  CHECK(name(with_tag({4, 3}, Tag::ab), low({4, 3}, Tag::ab)) == "own:simd");
}

TEST_CASE("reorders that keep the order and type copy every element, padding included") {
  const Shape shape{3, 5, 4, 3};
  const TensorDesc padded = with_tag(shape, Tag::nChw8c), wide{shape, DType::f64, plain_cpu_layout(shape, DType::f64)};
  const std::vector<float> floats = random_values(3 * 8 * 12);
  std::vector<float> copied(floats.size());
  void* const args[] = {const_cast<float*>(floats.data()), copied.data()};
  reorder(padded, padded)->execute(args, nullptr);
  CHECK(copied == floats);

  std::vector<double> doubles(static_cast<std::size_t>(shape.numel())), also(doubles.size());
  for (std::size_t i = 0; i < doubles.size(); ++i) doubles[i] = 1.0 / static_cast<double>(i + 3);  // not float32
  void* const wide_args[] = {doubles.data(), also.data()};
  reorder(wide, wide)->execute(wide_args, nullptr);
  CHECK(also == doubles);
}

TEST_CASE("a float16 reorder that changes the layout is rejected with both layouts") {
  const Shape shape{2, 3, 4, 5};
  const TensorDesc rows{shape, DType::f16, plain_cpu_layout(shape, DType::f16)}, last = with_tag(shape, Tag::nhwc);
  const auto refused = [](const TensorDesc& src, const TensorDesc& dst, const std::string& types) {
    try {
      make_cpu_op(Reorder{src, dst}, {});
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(error.what() == "reorder: " + types + " cannot change the layout on CPUs, from " + src.layout.name +
                                " to " + dst.layout.name + "; convert to float32 first");
    }
  };
  refused(last, rows, "float32 to float16");
  refused(rows, last, "float16 to float32");
}
