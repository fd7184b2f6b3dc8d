#include <map>

#include "dp/error.h"
#include "kernels/cpu/cpu_layout.h"
#include "kernels/op_rig.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using dp::test::OpRig;
using Tag = dnnl::memory::format_tag;

Layout layout(const dnnl::memory::dims& dims, Tag tag) {
  return make_layout(DnnlDesc(dims, dnnl::memory::data_type::f32, tag), DType::f32);
}

}  // namespace

TEST_CASE("layouts have readable names") {
  CHECK(layout({64, 32, 26, 26}, Tag::nchw).name == "abcd:f32(64, 32, 26, 26)");
  CHECK(layout({64, 32, 26, 26}, Tag::nhwc).name == "acdb:f32(64, 32, 26, 26)");
  CHECK(layout({64, 32, 26, 26}, Tag::nChw8c).name == "aBcd8b:f32(64, 32, 26, 26)");
  CHECK(layout({64, 32, 3, 3}, Tag::OIhw16i16o).name == "ABcd16b16a:f32(64, 32, 3, 3)");
  CHECK(plain_cpu_layout({128, 9216}, DType::f64).name == "ab:f64(128, 9216)");
  CHECK(plain_cpu_layout({128, 9216}, DType::f64).bytes == 128 * 9216 * 8);
  CHECK(plain_cpu_layout({}, DType::f32).bytes == 4);
  CHECK(plain_cpu_layout({7}, DType::i64).name == "a:i64(7,)");
}

TEST_CASE("layouts are equal if and only if every element has the same place") {
  const Tag tags[] = {Tag::nchw,     Tag::nhwc,     Tag::chwn,       Tag::nChw8c, Tag::nChw16c,
                      Tag::OIhw8i8o, Tag::OIhw8o8i, Tag::OIhw16i16o, Tag::hwio};
  std::map<std::string, Tag> seen;
  for (const Tag tag : tags) CHECK(seen.emplace(layout({32, 48, 5, 7}, tag).name, tag).second);
  // Axes of size one have no order.
  CHECK(layout({32, 1, 5, 7}, Tag::nchw) == layout({32, 1, 5, 7}, Tag::nhwc));
  CHECK(layout({32, 1, 5, 7}, Tag::nchw).name == "abcd:f32(32, 1, 5, 7)");
  CHECK(layout({32, 6, 1, 1}, Tag::nchw) == layout({32, 6, 1, 1}, Tag::nhwc));
  CHECK_FALSE(layout({32, 6, 2, 1}, Tag::nchw) == layout({32, 6, 2, 1}, Tag::nhwc));
  // Padded channels and gaps make layouts differ.
  CHECK_FALSE(layout({4, 6, 2, 2}, Tag::nChw8c) == layout({4, 8, 2, 2}, Tag::nChw8c));
  const DnnlDesc gaps({4, 6}, dnnl::memory::data_type::f32, dnnl::memory::dims{10, 1});
  CHECK_FALSE(make_layout(gaps, DType::f32) == plain_cpu_layout({4, 6}, DType::f32));
}

TEST_CASE("Reorder names the layout of float64 that it cannot change") {
  OpRig rig(DeviceKind::cpu);
  const Shape shape{2, 16, 3, 3};
  const TensorDesc rows{shape, DType::f32, plain_cpu_layout(shape, DType::f32)};
  const DnnlDesc nhwc(dims_of(shape), dnnl::memory::data_type::f32, dnnl::memory::format_tag::nhwc);
  const TensorDesc other{shape, DType::f64, make_layout(nhwc, DType::f64)};
  const std::string expected = "float64 must be row-major if the layout changes, not " + other.layout.name;
  CHECK_THROWS_WITH(rig.context().make_op(Reorder{rows, other}), Catch::Contains(expected));
  CHECK_THROWS_WITH(rig.context().make_op(Reorder{other, rows}), Catch::Contains(expected));
}

TEST_CASE("activations are viewed as planes of blocks of channels") {
  const auto view = [](Tag tag) { return view_of({{2, 20, 3, 5}, DType::f32, layout({2, 20, 3, 5}, tag)}); };
  CHECK(view(Tag::nchw).block == 1);
  CHECK(view(Tag::nchw).blocks == 20);
  CHECK(view(Tag::nhwc).block == 20);
  CHECK(view(Tag::nhwc).blocks == 1);
  CHECK(view(Tag::nChw8c).block == 8);
  CHECK(view(Tag::nChw8c).blocks == 3);
  CHECK(view(Tag::nChw8c).at(1, 2) == 24 * 15 + 2 * 8 * 15);
  CHECK_THROWS_AS(view(Tag::chwn), Error);
  CHECK_THROWS_AS(view_of({{16, 16, 3, 3}, DType::f32, layout({16, 16, 3, 3}, Tag::OIhw8i8o)}), Error);
}
