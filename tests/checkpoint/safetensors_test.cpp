#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/files_support.h"
#include "dp/random.h"
#include "support/catch.h"

using dp::DType;
using dp::NamedTensors;
using dp::Shape;
using dp::Tensor;
using namespace dp::test;

namespace {

bool same(const NamedTensors::value_type& a, const NamedTensors::value_type& b) {
  return a.first == b.first && a.second.shape() == b.second.shape() && a.second.dtype() == b.second.dtype() &&
         (a.second.bytes() == 0 || std::memcmp(a.second.raw(), b.second.raw(), a.second.bytes()) == 0);
}

Tensor random_tensor(const Shape& shape, DType type, std::uint64_t key) {
  Tensor tensor(shape, type);
  dp::Random random(9, dp::RandomUse::synthetic, key);
  auto* bytes = static_cast<unsigned char*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<unsigned char>(random.next());
  return tensor;
}

NamedTensors read_back(const NamedTensors& tensors) {
  const ScratchFolder folder;
  dp::write_safetensors(folder / "t.safetensors", tensors);
  return dp::read_safetensors(folder / "t.safetensors");
}

// Reads one tensor "x" of 16-bit floats with these bits.
Tensor read_halves(const std::string& dtype, const std::vector<std::uint16_t>& bits) {
  const ScratchFolder folder;
  const std::string count = std::to_string(bits.size()), bytes = std::to_string(2 * bits.size());
  write_bytes(folder / "h", safetensors_bytes(R"({"x":{"dtype":")" + dtype + R"(","shape":[)" + count +
                                                  R"(],"data_offsets":[0,)" + bytes + "]}}",
                                              {reinterpret_cast<const char*>(bits.data()), 2 * bits.size()}));
  return dp::read_safetensors(folder / "h").at(0).second;
}

}  // namespace

TEST_CASE("a written safetensors file has the bytes that the format prescribes") {
  const float weights[] = {1, 2};
  Tensor steps(Shape{}, DType::i64), flags(Shape{3}, DType::u8);
  steps.data<std::int64_t>()[0] = 5;
  std::memcpy(flags.raw(), "\1\2\3", 3);
  const NamedTensors tensors = {
      {"u", flags}, {"fc.weight", dp::tensor_of({1, 2}, weights)}, {"empty", Tensor(Shape{0, 4})}, {"steps", steps}};

  std::string json = R"({"__metadata__":{"format":"pt"},)"
                     R"("steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                     R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
                     R"("fc.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},)"
                     R"("u":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::string data("\5\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40\1\2\3", 19);

  const ScratchFolder folder;
  dp::write_safetensors(folder / "golden.safetensors", tensors);
  CHECK(read_bytes(folder / "golden.safetensors") == safetensors_bytes(json, data));
  CHECK(count_hidden(folder.path()) == 0);
}

TEST_CASE("safetensors files written by other programs are read") {
  const ScratchFolder folder;
  write_bytes(folder / "f", safetensors_bytes("{ \"b\" : {\"data_offsets\":[4,8], \"shape\":[1],\"dtype\":\"I32\"},\n"
                                              "\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},"
                                              "\"__metadata__\":{\"k\":\"v\",\"\":\"\"}}   ",
                                              std::string("\0\0\x80\x3f\7\0\0\0", 8)));
  std::map<std::string, std::string> metadata;
  const NamedTensors tensors = dp::read_safetensors(folder / "f", &metadata);
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[0].first == "a");
  CHECK(tensors[0].second.shape() == Shape{1, 1});
  CHECK(tensors[0].second.data<float>()[0] == 1);
  CHECK(tensors[1].second.data<std::int32_t>()[0] == 7);
  CHECK(metadata == std::map<std::string, std::string>{{"", ""}, {"k", "v"}});
}

TEST_CASE("every type and shape survives a round trip") {
  NamedTensors tensors;
  std::uint64_t key = 0;
  for (const DType type : {DType::f64, DType::i64, DType::f32, DType::i32, DType::u8})  // in order of decreasing width
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{3}, Shape{2, 0, 5}, Shape{7, 3, 1}, Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
      const std::string name = (size_of(type) == 8 ? "a" : size_of(type) == 4 ? "b" : "c") + std::to_string(100 + key);
      tensors.emplace_back(name, random_tensor(shape, type, key++));
    }
  const NamedTensors read = read_back(tensors);
  REQUIRE(read.size() == tensors.size());
  for (std::size_t i = 0; i < read.size(); ++i) {  // zero-size tensors with equal offsets may change their order
    const auto match =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.first == read[i].first; });
    REQUIRE(match != tensors.end());
    CHECK(same(read[i], *match));
  }
  CHECK(read_back({}).empty());
}

TEST_CASE("the weights of mnist_convnet have PyTorch's names and shapes") {
  const NamedTensors tensors = {{"conv1.weight", Tensor({32, 1, 3, 3})}, {"fc1.weight", Tensor({128, 9216})}};
  const NamedTensors read = read_back(tensors);
  CHECK(same(read.at(0), tensors[0]));
  CHECK(same(read.at(1), tensors[1]));
}

TEST_CASE("16-bit floats are read as float32") {
  const Tensor half =
      read_halves("F16", {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x7c00, 0xfc00, 0x7e00});
  const double expected[] = {0, -0.0, 1, -2, 65504, 0x1p-14, 0x1p-24, -0x3ffp-24, INFINITY, -INFINITY};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    CHECK(half.data<float>()[i] == expected[i]);
    CHECK(std::signbit(half.data<float>()[i]) == std::signbit(expected[i]));
  }
  CHECK(std::isnan(half.data<float>()[10]));
  const Tensor brain = read_halves("BF16", {0x3f80, 0xbf00, 0x0001, 0x7f80});
  CHECK(brain.data<float>()[0] == 1);
  CHECK(brain.data<float>()[1] == -0.5f);
  CHECK(brain.data<float>()[2] == 0x1p-133f);
  CHECK(brain.data<float>()[3] == INFINITY);
}

// Values of PyTorch: torch.tensor(bytes, dtype=torch.uint8).view(type).to(torch.float32).
TEST_CASE("8-bit floats and other integers are widened") {
  const auto read = [](const std::string& dtype, std::size_t width, const std::string& bytes) {
    const ScratchFolder folder;
    write_bytes(folder / "f", safetensors_bytes(R"({"x":{"dtype":")" + dtype + R"(","shape":[)" +
                                                    std::to_string(bytes.size() / width) + R"(],"data_offsets":[0,)" +
                                                    std::to_string(bytes.size()) + "]}}",
                                                bytes));
    return dp::read_safetensors(folder / "f").at(0).second;
  };
  const Tensor e4m3 = read("F8_E4M3", 1, std::string("\x38\xb8\x7e\x01\x08\x80\x7f", 7));
  const float fine[] = {1, -1, 448, 0x1p-9f, 0x1p-6f, -0.0f};
  for (std::size_t i = 0; i < std::size(fine); ++i) CHECK(e4m3.data<float>()[i] == fine[i]);
  CHECK(std::isnan(e4m3.data<float>()[6]));
  const Tensor e5m2 = read("F8_E5M2", 1, std::string("\x3c\xc0\x7b\x01\x7c", 5));
  const float wide[] = {1, -2, 57344, 0x1p-16f, INFINITY};
  for (std::size_t i = 0; i < std::size(wide); ++i) CHECK(e5m2.data<float>()[i] == wide[i]);
  CHECK(read("I8", 1, "\xff\x7f").data<std::int32_t>()[0] == -1);
  CHECK(read("I16", 2, std::string("\x00\x80", 2)).data<std::int32_t>()[0] == -32768);
  CHECK(read("U16", 2, "\xff\xff").data<std::int32_t>()[0] == 65535);
  CHECK(read("U32", 4, "\xff\xff\xff\xff").data<std::int64_t>()[0] == 4294967295);
  CHECK(read("U64", 8, std::string("\x05\0\0\0\0\0\0\0", 8)).data<std::int64_t>()[0] == 5);
  CHECK(read("BOOL", 1, "\1").data<std::uint8_t>()[0] == 1);
  CHECK_THAT(outcome_of([&] { read("U64", 8, "\xff\xff\xff\xff\xff\xff\xff\xff"); }).text,
             Catch::Contains("'x' has a value beyond the range of int64"));
}

TEST_CASE("tensors that the format cannot hold are not written") {
  const ScratchFolder folder;
  const Tensor t(Shape{1});
  const auto written = [&](const NamedTensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
    return outcome_of([&] { dp::write_safetensors(folder / "x", tensors, metadata); });
  };
  CHECK_THAT(written({{"a", t}, {"a", t}}).text, Catch::Contains("two tensors named 'a'"));
  CHECK_THAT(written({{"a", Tensor()}}).text, Catch::Contains("'a' has no host memory"));
  CHECK_THAT(written({{"../a", t}}).text, Catch::Contains("contains a slash"));
  CHECK_THAT(written({{"a\xff", t}}).text, Catch::Contains("not valid UTF-8"));
  CHECK_THAT(written({{"a", t}}, {{"k", "\x80"}}).text, Catch::Contains("not valid UTF-8"));
  CHECK_THAT(written(NamedTensors(10001, {"a", t})).text, Catch::Contains("more than 10,000 tensors"));
  CHECK(written({{"", t}}).code == 2);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a failed write names the file and the reason, and leaves the old file") {
  const ScratchFolder folder;
  const NamedTensors tensors = {{"a", Tensor(Shape{1})}};
  const auto missing = outcome_of([&] { dp::write_safetensors(folder / "no/x", tensors); });
  CHECK(missing.code == 7);
  CHECK_THAT(missing.text, Catch::Contains(folder / "no/") && Catch::Contains("No such file or directory"));
  std::filesystem::create_directory(folder / "taken");
  const auto taken = outcome_of([&] { dp::write_safetensors(folder / "taken", tensors); });
  CHECK(taken.code == 7);
  CHECK_THAT(taken.text, Catch::Contains("Is a directory"));
  CHECK(count_hidden(folder.path()) == 0);
  for (const char* nameless : {"", "/", ".", "..", "a/..", "./"})
    CHECK(outcome_of([&] { dp::write_safetensors(nameless, tensors); }).code == 2);
}
