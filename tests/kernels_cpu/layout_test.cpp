#include <array>
#include <map>

#include "dp/error.h"
#include "kernels/device/cpu/cpu_layout.h"
#include "kernels/op_rig.h"
#include "kernels_cpu/tagged.h"
#include "support/catch.h"

namespace {

using namespace dp;
using namespace dp::kernels;
using dp::test::OpRig;
using dp::test::Tag;

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
  CHECK(make_layout(gaps, DType::f32).name == "ab strides 10,1:f32(4, 6)");
  const DnnlDesc columns({4, 6}, dnnl::memory::data_type::f32, dnnl::memory::dims{1, 5});
  CHECK(make_layout(columns, DType::f32).name == "ba strides 1,5:f32(4, 6)");
}

TEST_CASE("the name of a layout ends with the element type") {
  const auto name = [](DType type) { return plain_cpu_layout({7}, type).name; };
  CHECK(name(DType::f32) == "a:f32(7,)");
  CHECK(name(DType::f64) == "a:f64(7,)");
  CHECK(name(DType::u8) == "a:u8(7,)");
  CHECK(name(DType::i32) == "a:i32(7,)");
  CHECK(name(DType::i64) == "a:i64(7,)");
  CHECK(name(DType::bf16) == "a:bf16(7,)");
  CHECK(name(DType::f16) == "a:f16(7,)");
}

TEST_CASE("a layout keeps its memory order with elements of another type") {
  using Type = dnnl::memory::data_type;
  const auto check = [](const DnnlDesc& single) {
    const Layout expected = make_layout(single, DType::f32);
    INFO(expected.name);
    const DnnlDesc low = with_type(single, DType::bf16);
    CHECK(make_layout(low, DType::f32) == expected);
    CHECK(make_layout(low, DType::bf16).bytes == expected.bytes / 2);
    CHECK(low.get_size() == expected.bytes / 2);
    CHECK(make_layout(with_type(low, DType::f32), DType::f32) == expected);
    CHECK(with_type(low, DType::f32).get_size() == expected.bytes);
    CHECK(with_type(single, DType::f32) == single);
    CHECK(with_type(low, DType::bf16) == low);
  };
  for (const Tag tag : {Tag::nchw, Tag::nhwc, Tag::hwio, Tag::nChw4c, Tag::nChw8c, Tag::nChw16c, Tag::Abcd8a,
                        Tag::Oihw16o, Tag::Ohwi8o, Tag::Ohwi16o, Tag::OIhw16i16o, Tag::OIhw8i8o, Tag::OIhw16o16i,
                        Tag::OIhw8o8i, Tag::IOhw16o16i, Tag::IOhw16i16o, Tag::OIhw4i4o})
    check(DnnlDesc({30, 44, 3, 5}, Type::f32, tag));
  for (const Tag tag : {Tag::ab, Tag::ba, Tag::AB16b16a, Tag::AB16b32a, Tag::AB16b64a})
    check(DnnlDesc({60, 44}, Type::f32, tag));
  check(DnnlDesc({4, 6}, Type::f32, dnnl::memory::dims{10, 1}));
}

TEST_CASE("bfloat16 weights with pairs of channels have float32 weights without pairs") {
  using Type = dnnl::memory::data_type;
  const auto single = [](const dnnl::memory::dims& dims, Tag tag) {
    return make_layout(with_type(DnnlDesc(dims, Type::bf16, tag), DType::f32), DType::f32);
  };
  CHECK(single({32, 48, 3, 3}, Tag::OIhw8i16o2i) == layout({32, 48, 3, 3}, Tag::OIhw16i16o));
  CHECK(single({64, 96}, Tag::AB16b16a2b) == layout({64, 96}, Tag::AB16b16a));
  CHECK(single({64, 96}, Tag::AB16b32a2b) == layout({64, 96}, Tag::AB16b32a));
  CHECK(single({64, 96}, Tag::AB16b64a2b) == layout({64, 96}, Tag::AB16b64a));
  // An order that the other type does not have becomes row-major.
  CHECK(single({32, 48, 3, 3}, Tag::OIhw4i16o4i) == plain_cpu_layout({32, 48, 3, 3}, DType::f32));
}

TEST_CASE("a tensor gets the order and the blocks of another one unless its layout is given") {
  const Shape large{2, 20, 6, 6}, small{2, 20, 3, 3};
  for (const Tag tag : {Tag::nchw, Tag::nhwc, Tag::nChw4c, Tag::nChw8c, Tag::nChw16c}) {
    const TensorDesc like{large, DType::f32, layout({2, 20, 6, 6}, tag)};
    INFO(like.layout.name);
    CHECK(in_layout_of(like, {small, DType::f32, {}}).layout == layout({2, 20, 3, 3}, tag));
    CHECK(in_layout_of(like, {small, DType::bf16, {}}).layout ==
          make_layout(DnnlDesc({2, 20, 3, 3}, dnnl::memory::data_type::bf16, tag), DType::bf16));
    CHECK(in_layout_of(like, {small, DType::f32, {}}).shape == small);
    for (const Tag given : {Tag::nchw, Tag::nhwc, Tag::nChw8c})
      CHECK(in_layout_of(like, {small, DType::f32, layout({2, 20, 3, 3}, given)}).layout ==
            layout({2, 20, 3, 3}, given));
  }
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
  using View = std::array<std::int64_t, 10>;  // n c h w, blocks block, the strides of n, block, h, w
  const auto fields = [](const Layout& layout) {
    const ActivationView v = view_of({{}, DType::f32, layout});
    return View{v.n, v.c, v.h, v.w, v.blocks, v.block, v.stride_n, v.stride_block, v.stride_h, v.stride_w};
  };
  const dnnl::memory::dims dims{2, 20, 3, 5};
  CHECK(fields(layout(dims, Tag::nchw)) == View{2, 20, 3, 5, 20, 1, 300, 15, 5, 1});
  CHECK(fields(layout(dims, Tag::nhwc)) == View{2, 20, 3, 5, 1, 20, 300, 1, 100, 20});
  CHECK(fields(layout(dims, Tag::nChw8c)) == View{2, 20, 3, 5, 3, 8, 360, 120, 40, 8});
  CHECK(fields(layout(dims, Tag::nChw16c)) == View{2, 20, 3, 5, 2, 16, 480, 240, 80, 16});
  CHECK(fields(layout({2, 3, 4, 1}, Tag::nchw)) == View{2, 3, 4, 1, 3, 1, 12, 4, 1, 1});
  CHECK(fields(layout({3, 5, 1, 1}, Tag::nchw)) == View{3, 5, 1, 1, 1, 5, 5, 1, 5, 5});
  CHECK(fields(layout({4, 6}, Tag::ab)) == View{4, 1, 1, 6, 1, 1, 6, 6, 6, 1});
  const DnnlDesc gaps({4, 6}, dnnl::memory::data_type::f32, dnnl::memory::dims{10, 1});
  CHECK(fields(make_layout(gaps, DType::f32)) == View{4, 1, 1, 6, 1, 1, 10, 6, 6, 1});
  ActivationView view;
  view.stride_n = 360, view.stride_block = 120;
  CHECK(view.at(3, 2) == 3 * 360 + 2 * 120);
}

TEST_CASE("layouts other than planes of channel blocks are rejected with their names") {
  const auto strided = [](const dnnl::memory::dims& dims, const dnnl::memory::dims& strides) {
    return make_layout(DnnlDesc(dims, dnnl::memory::data_type::f32, strides), DType::f32);
  };
  const Layout rejected[] = {layout({2, 20, 3, 5}, Tag::chwn),
                             layout({16, 16, 3, 3}, Tag::OIhw8i8o),
                             layout({16, 16, 3, 3}, Tag::Abcd8a),
                             layout({2, 3, 4}, Tag::abc),
                             layout({4, 6}, Tag::ba),
                             layout({32, 32}, Tag::AB16b16a),
                             strided({2, 3, 4, 5}, {120, 40, 10, 2}),  // gaps between columns
                             strided({2, 3, 4, 5}, {72, 24, 6, 1})};   // gaps between rows
  for (const Layout& one : rejected) {
    INFO(one.name);
    try {
      view_of({{}, DType::f32, one});
      FAIL_CHECK("it is not rejected");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      CHECK(error.what() == "layout " + one.name + " is not an activation layout; use nchw, nhwc or blocked channels");
    }
  }
}
