// The chunked data gradient of a linear layer. The backend uses it on some processors and shapes only; this test calls
// it on all.
#include <cmath>

#include "dp/random.h"
#include "dp/tensor.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/linear/cpu_chunks.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"
#include "support/tensor_errors.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using namespace dp::test;

// w is stored as (inputs, outputs), with the inputs in the order of dx's memory.
void check_chunks(const TensorDesc& dx, const TensorDesc& w, int threads) {
  const std::int64_t rows = dx.shape[0], inputs = dx.shape.numel() / rows, outputs = w.shape[0];
  const LinearBackwardData desc{any_layout({rows, outputs}), w, dx};
  const auto op = make_chunked_backward_data(desc, {threads, false});
  INFO(dx.layout.name << " " << w.layout.name << " threads " << threads);
  REQUIRE(op != nullptr);
  CHECK(op->implementation() == "dnnl_sgemm:chunks");
  CHECK(op->tensors()[0].layout == plain_cpu_layout(desc.dy.shape, DType::f32));
  CHECK(op->tensors()[1].layout == w.layout);
  CHECK(op->tensors()[2].layout == dx.layout);
  Random random(5, RandomUse::synthetic);
  Tensor dy(desc.dy.shape), weights(Shape{inputs, outputs}), result(Shape{rows, inputs});
  for (float& value : dy.span<float>()) value = random.uniform(-1, 1);
  for (float& value : weights.span<float>()) value = random.uniform(-1, 1);
  for (float& value : result.span<float>()) value = std::nanf("");
  void* const args[] = {dy.raw(), weights.raw(), result.raw()};
  op->execute(args, nullptr);
  double worst = 0;
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t i = 0; i < inputs; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < outputs; ++o)
        sum += static_cast<double>(dy.data<float>()[n * outputs + o]) * weights.data<float>()[i * outputs + o];
      worst = test::larger_error(worst, std::abs(sum - result.data<float>()[n * inputs + i]));
    }
  CHECK(worst < 1e-4);
}

}  // namespace

TEST_CASE("the chunked data gradient of a linear layer equals plain loops") {
  for (const int threads : {1, 3}) {
    check_chunks(with_tag({5, 2500}, Tag::ab), with_tag({33, 2500}, Tag::ba), threads);  // chunks do not divide evenly
    check_chunks(with_tag({3, 1024}, Tag::ab), with_tag({16, 1024}, Tag::ba), threads);  // one chunk on one thread
    check_chunks(with_tag({1, 7}, Tag::ab), with_tag({1, 7}, Tag::ba), threads);         // fewer inputs than threads
    check_chunks(with_tag({4, 3, 20, 25}, Tag::nchw), with_tag({10, 1500}, Tag::ba), threads);
    check_chunks(with_tag({4, 32, 9, 5}, Tag::nhwc), with_tag({10, 32, 9, 5}, Tag::hwio), threads);
    check_chunks(with_tag({4, 16, 3, 5}, Tag::nChw8c), with_tag({8, 16, 3, 5}, Tag::OIhw8i8o), threads);
  }
}

TEST_CASE("the chunked data gradient rejects unsupported layouts") {
  const CpuOpOptions options{1, false};
  const auto make = [&](const TensorDesc& dx, const TensorDesc& w) {
    return make_chunked_backward_data({any_layout({dx.shape[0], w.shape[0]}), w, dx}, options);
  };
  CHECK(make(with_tag({5, 96}, Tag::ab), with_tag({8, 96}, Tag::ab)) == nullptr);             // w is (outputs, inputs)
  CHECK(make(with_tag({4, 32, 9, 5}, Tag::nhwc), with_tag({10, 1440}, Tag::ba)) == nullptr);  // another order
  CHECK(make(with_tag({4, 20, 3, 3}, Tag::nChw16c), with_tag({10, 20, 3, 3}, Tag::hwio)) == nullptr);  // padding
  CHECK(make(any_layout({5, 96}), with_tag({8, 96}, Tag::ba)) == nullptr);                             // any layout
  CHECK(make(with_tag({5, 96}, Tag::ab), any_layout({8, 96})) == nullptr);
  CHECK(make(with_tag({4, 16, 3, 5}, Tag::nChw8c), with_tag({16, 16, 3, 5}, Tag::OIhw8i8o)) == nullptr);  // half of w
  const DnnlDesc gaps({5, 96}, dnnl::memory::data_type::f32, dnnl::memory::dims{100, 1});
  CHECK(make({{5, 96}, DType::f32, make_layout(gaps, DType::f32)}, with_tag({8, 96}, Tag::ba)) == nullptr);
  const TensorDesc dx = with_tag({5, 96}, Tag::ab), w = with_tag({8, 96}, Tag::ba);
  CHECK(make_chunked_backward_data({with_tag({5, 8}, Tag::ab), w, dx}, options) != nullptr);
  CHECK(make_chunked_backward_data({with_tag({5, 8}, Tag::ba), w, dx}, options) == nullptr);  // columns of dy
}
