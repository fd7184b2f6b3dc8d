// The limits of the format, and tensors of types that PyTorch does not use for weights.
#include <cstring>

#include "checkpoint/files_support.h"
#include "engine/checkpoint/safetensors.h"
#include "support/catch.h"

using dp::DType;
using dp::NamedTensors;
using dp::Shape;
using dp::Tensor;
using namespace dp::test;
using namespace std::string_literals;

namespace {

class FarStorage final : public dp::Storage {
 public:
  void* data() override { return bytes_; }
  std::size_t bytes() const override { return sizeof bytes_; }
  dp::Device device() const override { return {dp::DeviceKind::cuda, 0}; }
  bool host_accessible() const override { return false; }
  void read(void* dst, const void* src, std::size_t bytes) const override { std::memcpy(dst, src, bytes); }

 private:
  unsigned char bytes_[16] = {};
};

NamedTensors read(const std::string& bytes, std::map<std::string, std::string>* metadata = nullptr) {
  dp::MemorySource source("f", std::as_bytes(std::span(bytes)));
  return dp::read_safetensors(source, metadata);
}

std::string empty_tensor(const std::string& name) {
  return "\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
}

std::string metadata_file(const std::string& value) {
  return safetensors_bytes(R"({"__metadata__":{"key":")" + value + "\"}}", "");
}

}  // namespace

TEST_CASE("10,000 tensors and 10,000 entries of metadata are read") {
  std::string tensors = "{", metadata = "{\"__metadata__\":{";
  for (int i = 0; i < 10000; ++i) {
    tensors += (i ? "," : "") + empty_tensor("t" + std::to_string(i));
    metadata += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"v\"";
  }
  CHECK(read(safetensors_bytes(tensors + "}", "")).size() == 10000);
  std::map<std::string, std::string> entries;
  CHECK(read(safetensors_bytes(metadata + "}}", ""), &entries).empty());
  CHECK(entries.size() == 10000);
  CHECK(entries["9999"] == "v");
}

TEST_CASE("a token of 1 MiB and a name of 1,024 bytes are read, and one byte more is not") {
  std::map<std::string, std::string> entries;
  read(metadata_file(std::string(1 << 20, 'v')), &entries);
  CHECK(entries["key"].size() == 1 << 20);
  const Outcome longer = outcome_of([&] { read(metadata_file(std::string((1 << 20) + 1, 'v'))); });
  CHECK(longer.text == "f: its header contains a token of more than 1 MiB");
  const std::string name(1024, 'n');
  CHECK(read(safetensors_bytes("{" + empty_tensor(name) + "}", "")).at(0).first == name);
  CHECK(dp::fault_of_tensor_name(name).empty());
  CHECK(dp::fault_of_tensor_name(name + "n") == "is longer than 1,024 bytes");
  CHECK(dp::fault_of_tensor_name("").empty() == false);
}

TEST_CASE("blanks of every kind are allowed, and escaped quotes are part of a text") {
  std::map<std::string, std::string> entries;
  const NamedTensors tensors =
      read(safetensors_bytes("{\t\"__metadata__\"\r\n:{\"a\\\"\":\"\\\\\"} ,\n" + empty_tensor("t") + "\t}\r\n ", ""),
           &entries);
  CHECK(tensors.size() == 1);
  CHECK(entries == std::map<std::string, std::string>{{"a\"", "\\"}});
}

TEST_CASE("tensors are read in the order of their bytes, and empty ones at the same byte by name") {
  const std::string json = R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("d":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                           R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
                           R"("c":{"dtype":"F32","shape":[0,3],"data_offsets":[1,1]}})";
  const NamedTensors tensors = read(safetensors_bytes(json, "\5\6"));
  REQUIRE(tensors.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(tensors[i].first == std::string(1, "zcda"[i]));
  CHECK(tensors[0].second.data<std::uint8_t>()[0] == 5);
  CHECK(tensors[3].second.data<std::uint8_t>()[0] == 6);
  CHECK(tensors[1].second.shape() == Shape{0, 3});
}

TEST_CASE("16-bit floats are written as they are and read as float32") {
  const ScratchFolder folder;
  const std::uint16_t brain[] = {0x3f80, 0xbf00}, half[] = {0x3c00, 0xc000};
  Tensor b(Shape{2}, DType::bf16), h(Shape{2}, DType::f16);
  std::memcpy(b.raw(), brain, sizeof brain);
  std::memcpy(h.raw(), half, sizeof half);
  dp::write_safetensors(folder / "f", {{"h", h}, {"b", b}}, {});
  std::string json = R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                     R"("h":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  CHECK(read_bytes(folder / "f") == safetensors_bytes(json, "\x80\x3f\x00\xbf\x00\x3c\x00\xc0"s));
  const NamedTensors tensors = dp::read_safetensors(folder / "f");
  CHECK(tensors.at(0).second.data<float>()[0] == 1);
  CHECK(tensors.at(0).second.data<float>()[1] == -0.5f);
  CHECK(tensors.at(1).second.data<float>()[0] == 1);
  CHECK(tensors.at(1).second.data<float>()[1] == -2);
}

TEST_CASE("tensors without host memory are neither written nor digested") {
  const ScratchFolder folder;
  for (const Tensor& tensor : {Tensor(), Tensor(Shape{4}, DType::u8, std::make_shared<FarStorage>())}) {
    const Outcome written = outcome_of([&] { dp::write_safetensors(folder / "f", {{"a", tensor}}); });
    CHECK(written.code == 2);
    CHECK_THAT(written.text, Catch::Contains(": tensor 'a' has no host memory; copy it there first"));
    const Outcome digested = outcome_of([&] { dp::weights_sha256({{"a", tensor}}); });
    CHECK(digested.code == 2);
    CHECK(digested.text == "tensor 'a' has no host memory; copy it there first");
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}
