// Shapes, element types and tensors at the limits of what they accept.
#include "dp/tensor.h"

#include <cstring>

#include "dp/error.h"
#include "support/catch.h"
#include "support/refusal.h"

namespace {

using namespace dp;

// Memory that the host may not read directly, as that of a GPU.
class FarStorage final : public Storage {
 public:
  void* data() override { return bytes_; }
  std::size_t bytes() const override { return sizeof bytes_; }
  Device device() const override { return {DeviceKind::cuda, 3}; }
  bool host_accessible() const override { return false; }
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  unsigned char bytes_[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
};

}  // namespace

TEST_CASE("every element type has its size and PyTorch's name, and every error code has a name") {
  struct {
    DType type;
    std::size_t bytes;
    std::string name;
  } const types[] = {{DType::f32, 4, "float32"}, {DType::f64, 8, "float64"}, {DType::u8, 1, "uint8"},
                     {DType::i32, 4, "int32"},   {DType::i64, 8, "int64"},   {DType::bf16, 2, "bfloat16"},
                     {DType::f16, 2, "float16"}};
  for (const auto& [type, bytes, name] : types) {
    CHECK(size_of(type) == bytes);
    CHECK(to_string(type) == name);
  }
  const std::pair<ErrorCode, std::string> codes[] = {
      {ErrorCode::usage, "usage"},          {ErrorCode::data, "data"},       {ErrorCode::device, "device"},
      {ErrorCode::nonfinite, "non-finite"}, {ErrorCode::timeout, "timeout"}, {ErrorCode::io, "input/output"}};
  for (const auto& [code, name] : codes) CHECK(to_string(code) == name);
}

TEST_CASE("a shape has up to eight dimensions and fewer than 2^63 elements") {
  const Shape eight{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(eight.rank() == 8);
  CHECK(eight.numel() == 40320);
  CHECK(test::refusal_of([] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }) == "a shape has at most 8 dimensions");
  CHECK(test::refusal_of([&] { eight.prepended(1); }) == "a shape has at most 8 dimensions");
  CHECK(test::refusal_of([] { Shape{2, -1}; }) == "a dimension of a shape is negative");
  constexpr std::int64_t kHalf = std::int64_t{1} << 31;
  CHECK(Shape{kHalf, kHalf - 1, 2}.numel() == kHalf * (kHalf - 1) * 2);
  CHECK(test::refusal_of([] { Shape{kHalf, kHalf, 2}; }) == "a shape has more than 2^63 elements");
  CHECK(Shape{kHalf, 0, kHalf, kHalf, kHalf}.numel() == 0);
  CHECK(Shape{9, 8}.with_dim(1, 5) == Shape{9, 5});
  CHECK(test::refusal_of([] { Shape{9, 8}.with_dim(0, -5); }) == "a dimension of a shape is negative");
  CHECK(Shape{9, 8}.prepended(3) == Shape{3, 9, 8});
  CHECK(Shape{3, 9, 8}.without_first() == Shape{9, 8});
  CHECK(Shape{3}.without_first() == Shape{});
  CHECK(test::refusal_of([] { Shape{}.without_first(); }) == "a scalar has no first dimension");
  CHECK(Shape{3} != Shape{3, 1});
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{3}) == "(3,)");
  CHECK(to_string(Shape{3, 0, 7}) == "(3, 0, 7)");
}

TEST_CASE("a new tensor is zeroed and aligned in host memory, and an empty one has no memory") {
  const Tensor tensor(Shape{3, 5}, DType::f64);
  CHECK(tensor.bytes() == 120);
  CHECK(tensor.storage()->bytes() == 120);
  CHECK(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 64 == 0);
  for (const double value : tensor.span<double>()) CHECK(value == 0);
  CHECK(tensor.device() == Device{DeviceKind::cpu, 0});
  CHECK_FALSE(tensor.empty());
  CHECK(Tensor(Shape{2}).dtype() == DType::f32);
  const Tensor none(Shape{0, 4});
  CHECK_FALSE(none.empty());
  CHECK(none.raw() == nullptr);
  CHECK(none.clone().shape() == Shape{0, 4});
  CHECK(Tensor().empty());
  CHECK(Tensor().clone().empty());
  CHECK(Tensor().device() == Device{});
}

TEST_CASE("a tensor is read as its own type only, and by the host only from host memory") {
  Tensor bytes(Shape{4}, DType::u8), counts(Shape{4}, DType::i32), labels(Shape{4}, DType::i64);
  CHECK(bytes.data<std::uint8_t>() == bytes.raw());
  CHECK(counts.data<std::int32_t>() == counts.raw());
  CHECK(labels.span<std::int64_t>().size() == 4);
  CHECK(test::refusal_of([&] { labels.data<float>(); }) == "a tensor of int64 was read as float32");
  CHECK(test::refusal_of([&] { bytes.data<double>(); }) == "a tensor of uint8 was read as float64");
  CHECK(test::refusal_of([&] { counts.data<std::uint8_t>(); }) == "a tensor of int32 was read as uint8");
  CHECK(test::refusal_of([&] { counts.data<std::int64_t>(); }) == "a tensor of int32 was read as int64");
  CHECK(test::refusal_of([&] { bytes.data<std::int32_t>(); }) == "a tensor of uint8 was read as int32");

  const auto memory = std::make_shared<FarStorage>();
  const Tensor far(Shape{4, 4}, DType::u8, memory);
  CHECK(far.device() == Device{DeviceKind::cuda, 3});
  CHECK(test::refusal_of([&] { far.data<std::uint8_t>(); }) ==
        "a tensor on cuda:3 was read by the host; copy it with clone() first");
  const Tensor copy = far.rows(1, 3).clone();
  CHECK(copy.device() == Device{DeviceKind::cpu, 0});
  CHECK(copy.shape() == Shape{2, 4});
  for (std::size_t i = 0; i < 8; ++i) CHECK(copy.span<std::uint8_t>()[i] == i + 5);
  CHECK(test::refusal_of([&] { Tensor(Shape{4}, DType::f32, memory); }) == "accepted");
  CHECK(test::refusal_of([&] { Tensor(Shape{17}, DType::u8, memory); }) ==
        "a tensor of shape (17,) does not fit into its storage");
}

TEST_CASE("rows and other shapes of a tensor share its memory, and invalid ones are rejected") {
  const float values[] = {1, 2, 3, 4, 5, 6};
  Tensor tensor = tensor_of({3, 2}, values);
  CHECK(tensor.rows(1, 3).shape() == Shape{2, 2});
  CHECK(tensor.rows(1, 3).data<float>() == tensor.data<float>() + 2);
  CHECK(tensor.rows(0, 3).numel() == 6);
  CHECK(tensor.rows(3, 3).numel() == 0);
  CHECK(test::refusal_of([&] { tensor.rows(-1, 2); }) == "rows -1 to 2 are not in a tensor of shape (3, 2)");
  CHECK(test::refusal_of([&] { tensor.rows(2, 1); }) == "rows 2 to 1 are not in a tensor of shape (3, 2)");
  CHECK(test::refusal_of([&] { tensor.rows(0, 4); }) == "rows 0 to 4 are not in a tensor of shape (3, 2)");
  CHECK(test::refusal_of([] { Tensor(Shape{}).rows(0, 0); }) == "rows 0 to 0 are not in a tensor of shape ()");
  CHECK(Tensor(Shape{0, 2}).rows(0, 0).shape() == Shape{0, 2});
  tensor.reshaped({2, 3}).data<float>()[5] = 9;
  CHECK(tensor.data<float>()[5] == 9);
  CHECK(tensor.reshaped({6}).shape() == Shape{6});
  CHECK(test::refusal_of([&] { tensor.reshaped({5}); }) == "a tensor of shape (3, 2) cannot become (5,)");
  const Tensor copy = tensor.clone();
  tensor.data<float>()[0] = 7;
  CHECK(copy.data<float>()[0] == 1);
  CHECK(test::refusal_of([&] { tensor_of({3, 3}, values); }) == "6 values do not fill the shape (3, 3)");
}
