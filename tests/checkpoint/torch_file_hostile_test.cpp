// Hostile and damaged files of torch.save.
#include "checkpoint/files_support.h"
#include "checkpoint/hostile_corpus.h"
#include "checkpoint/memory_peak.h"
#include "checkpoint/torch_files.h"
#include "engine/checkpoint/pickle.h"
#include "engine/checkpoint/torch_file.h"
#include "support/catch.h"

using namespace dp::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kPickleMemory = std::size_t{256} << 20;

Outcome outcome_of_bytes(const std::string& bytes) {
  return outcome_of([&] {
    dp::MemorySource source("f", std::as_bytes(std::span(bytes)));
    dp::read_torch_file(source, {});
  });
}

std::string with(const std::string& value) { return torch_zip(pickle_dict(pickle_text("w") + value) + "."); }
std::string with_tensor(std::int32_t offset, const std::vector<std::int32_t>& sizes,
                        const std::vector<std::int32_t>& strides, std::int32_t elements = 4) {
  return with(tensor_of_storage(storage_of(elements), offset, sizes, strides));
}
std::string repeated(const std::string& part, std::size_t times) {
  std::string all;
  all.reserve(part.size() * times);
  for (std::size_t i = 0; i < times; ++i) all += part;
  return all;
}
std::string many_views() {  // 100 views of the whole storage
  std::string pairs;
  for (int i = 0; i < 100; ++i) pairs += pickle_text("t" + std::to_string(i)) + four_floats();
  return torch_zip(pickle_dict(pairs) + ".", std::string(16, '\0'));
}
std::string views_of_large_storage() {
  std::string pairs;
  for (int i = 0; i < 100; ++i)
    pairs += pickle_text("t" + std::to_string(i)) + tensor_of_storage(storage_of(250'000), 0, {250'000}, {1});
  return torch_zip(pickle_dict(pairs) + ".", std::string(1'000'000, '\0'));
}
std::string deep(std::size_t levels) { return torch_zip(repeated("]", levels + 1) + repeated("a", levels) + "."); }

std::vector<BadFile> hostile_torch_files() {
  const std::string call = pickle_global("os", "system") + pickle_text("true") + "\x85R";
  const int top = 0x7fffffff;
  return {
      {"os.system", with(call), "names os.system, which is not part of a state dict; nothing of it was executed"},
      {"builtins.eval", with(pickle_global("builtins", "eval") + pickle_text("1") + "\x85R"), "names builtins.eval"},
      {"a global by the stack", with(pickle_text("posix") + pickle_text("system") + "\x93"), "names posix.system"},
      {"a global split elsewhere", with(pickle_global("torch._utils._rebuild", "tensor_v2")),
       "names torch._utils._rebuild.tensor_v2"},
      {"REDUCE of a text", with(pickle_text("f") + ")R"), "what it calls is not a global"},
      {"REDUCE without a tuple", with(pickle_global("collections", "OrderedDict") + "]R"), "arguments are not a tuple"},
      {"INST", with("(ios\nsystem\n"), "has the opcode INST"},
      {"OBJ", with("(" + pickle_global("collections", "OrderedDict") + "o"), "has the opcode OBJ"},
      {"an extension", with("\x82\1"), "has the opcode EXT1"},
      {"PERSID", with("P0\n"), "has the opcode PERSID"},
      {"an unknown opcode", with("\xff"), "has the opcode 0xff"},
      {"protocol 1", zip_of({{"f/data.pkl", "\x80\1}."}}), "has protocol 1; 2 to 5 are read"},
      {"protocol 0", zip_of({{"f/data.pkl", "(dp0\n."}}), "does not begin with PROTO"},
      {"an empty stack", torch_zip("."), "the stack is empty"},
      {"values left", torch_zip("}}."), "leaves values behind"},
      {"no mark", torch_zip("}u."), "there is no mark"},
      {"a memo without a value", torch_zip("h\5."), "it refers to nothing"},
      {"a far memo", torch_zip("}r\xff\xff\xff\x7f."), "more than 1,048,576 entries in its memo"},
      {"a text beyond the pickle",
       torch_zip("X\xff\xff\xff\xff"
                 "a."),
       "is truncated"},
      {"a text of 2^63 bytes", torch_zip("\x8d" + little_bytes(~std::uint64_t{0} >> 1) + "a."), "is truncated"},
      {"a dict with half a pair", torch_zip("}(" + pickle_text("a") + "u."), "a key has no value"},
      {"a list", torch_zip("]."), "it does not hold a state dict"},
      {"a deep list", deep(50'000), "it does not hold a state dict"},
      {"numbers only", torch_zip(pickle_dict(pickle_text("epoch") + pickle_number(3)) + "."),
       "has no state dict of tensors; its entries are 'epoch'"},
      {"a list in a state dict",
       torch_zip(pickle_dict(pickle_text("w") + four_floats() + pickle_text("v") + "]") + "."),
       "the entry 'v' of its state dict is not a tensor"},
      {"a name with a path", torch_zip(pickle_dict(pickle_text("../w") + four_floats()) + "."),
       "has the tensor name '../w'"},
      {"a name that is no text", torch_zip(pickle_dict(pickle_text("\xff\xfe") + four_floats()) + "."),
       "which is not UTF-8"},
      {"a name twice",
       torch_zip(pickle_dict(pickle_text("w") + four_floats() + pickle_text("w") + four_floats()) + "."),
       "has two tensors named 'w'"},
      {"more elements than the storage", with_tensor(0, {5}, {1}), "ends after its storage of 16 bytes"},
      {"an offset beyond it", with_tensor(4, {1}, {1}), "ends after its storage"},
      {"a stride beyond it", with_tensor(0, {2}, {top}), "ends after its storage"},
      {"huge sizes", with_tensor(0, {top, top, top}, {1, 1, 1}), "more than 2^63 elements"},
      {"huge strides", with_tensor(0, {top, top, top}, {top, top, 1}), "more than 2^63"},
      {"a negative stride", with_tensor(3, {4}, {-1}), "strides below 0 or beyond 2^63"},
      {"a negative size", with_tensor(0, {-4}, {1}), "sizes below 0 or beyond 2^63"},
      {"a negative offset", with_tensor(-1, {4}, {1}), "a size that is not a number"},
      {"repeated elements", with_tensor(0, {1000, 4}, {0, 1}), "repeats elements"},
      {"nine dimensions", with_tensor(0, std::vector<std::int32_t>(9, 1), std::vector<std::int32_t>(9, 1)),
       "more than 8 dimensions"},
      {"more strides than sizes", with_tensor(0, {4}, {1, 1}), "more sizes than strides"},
      {"a storage larger than the file's", with_tensor(0, {4}, {1}, 1'000'000), "has a storage of 1000000 elements"},
      {"no storage", with(tensor_of_storage(storage_of(4, "FloatStorage", "1"), 0, {4}, {1})),
       "a storage that is not in the file"},
      {"no tensor in a parameter", with(pickle_global("torch._utils", "_rebuild_parameter") + "(N\x88}tR"),
       "a parameter without a tensor"},
      {"a parameter of a namespace",
       with(pickle_global("torch.nn.parameter", "Parameter") + pickle_global("argparse", "Namespace") + four_floats() +
            "\x85R\x85R"),
       "a parameter without a tensor"},
      {"another persistent object",
       with(pickle_global("torch._utils", "_rebuild_tensor_v2") + "((" + pickle_text("module") + "tQ" +
            pickle_number(0) + pickle_tuple({4}) + pickle_tuple({1}) + "\x89}tR"),
       "persistent object 'module'"},
      {"many views", many_views(), ""},
      {"many views of a large storage", views_of_large_storage(), "more than 16 times its size"},
      {"TorchScript", zip_of({{"f/data.pkl", "\x80\2}."}, {"f/constants.pkl", "\x80\2)."}}),
       "it is a TorchScript program"},
      {"another zip", zip_of({{"a.txt", "hello"}}), "a zip archive without data.pkl"},
      {"two entries of a name", zip_of({{"f/data.pkl", "\x80\2}."}, {"f/data.pkl", "\x80\2}."}}),
       "has two entries named 'f/data.pkl'"},
      {"another pickle", "\x80\2}.", "it is a Python pickle, but torch.save did not write it"},
      {"a tar", std::string(257, 'p') + "ustar" + std::string(250, '\0'), "it is a tar archive"},
      {"text", "weights", "torch.save did not write it"},
      {"nothing", "", "torch.save did not write it"},
  };
}

}  // namespace

TEST_CASE("a hostile file of torch.save is rejected for its fault, in little memory") {
  for (const BadFile& bad : hostile_torch_files()) {
    INFO(bad.what);
    const MemoryPeak peak;
    const Outcome outcome = outcome_of_bytes(bad.bytes);
    CHECK(peak.bytes() <= 2 * bad.bytes.size() + (8u << 20));
    CHECK(outcome.code == (bad.message.empty() ? 0 : 3));
    CHECK_THAT(outcome.text, Catch::Contains(bad.message));
    for (const char c : outcome.text) CHECK((c >= 32 && c <= 126));
    CHECK(outcome.text.size() < 4096);
    CHECK(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bad.bytes.data()), bad.bytes.size()) == 0);
  }
}

TEST_CASE("pickles that grow take bounded memory") {
  const std::size_t length = dp::kLongestPickle - 100;
  const std::string texts = "X" + little_bytes(std::uint32_t{1'000'000}) + std::string(1'000'000, 'k') + "q\1";
  const std::pair<std::string, std::string> bombs[] = {
      {repeated("]", length), "more than 1,048,576 objects"},
      {repeated("(", length), "more than 4,194,304 opcodes"},
      {repeated("N", length), "more than 4,194,304 opcodes"},
      {"]" + repeated("\x94", length), "more than 1,048,576 entries in its memo"},
      {"]q\1" + repeated("h\1", length / 2), "more than 4,194,304 opcodes"},
      {repeated(")\x85", length / 2), "more than 1,048,576 objects"},
      {"}(" + texts + repeated("h\1h\1", 1'000'000) + "h\1u.", "an entry with a name of more than 1,000 bytes"},
      // lists of lists, each with the one before it ten times
      {"]q\1" + repeated("](h\1h\1h\1h\1h\1h\1h\1h\1h\1h\1eq\1", 10'000) + ".", "leaves values behind"}};
  for (const auto& [pickle, message] : bombs) {
    INFO(message);
    const std::string bytes = torch_zip(pickle);
    const MemoryPeak peak;
    const Outcome outcome = outcome_of_bytes(bytes);
    CHECK(outcome.code == 3);
    CHECK_THAT(outcome.text, Catch::Contains(message));
    CHECK(peak.bytes() <= 2 * bytes.size() + kPickleMemory);
  }
  CHECK_THAT(outcome_of_bytes(torch_zip(repeated("N", dp::kLongestPickle))).text,
             Catch::Contains("at most 33554432 are read"));
}

TEST_CASE("a file of torch.save cut at any byte is rejected") {
  for (const char* name : {"zip.pth", "legacy.pth"}) {
    const std::string whole = read_bytes(torch_file_path(name));
    CHECK(outcome_of_bytes(whole).text.empty());
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const Outcome outcome = outcome_of_bytes(whole.substr(0, size));
      if (outcome.code != 3) FAIL(name << " cut at " << size << ": " << outcome.code << " " << outcome.text);
    }
  }
  CHECK(outcome_of_bytes(read_bytes(torch_file_path("legacy.pth")) + '\0').code == 3);
}

TEST_CASE("a file of torch.save with a wrong byte is rejected or read, never worse") {
  for (const char* name : {"zip.pth", "legacy.pth", "checkpoint.pth", "protocol4.pth"}) {
    const std::string whole = read_bytes(torch_file_path(name));
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); ++at)
      for (const int flip : {1, 16, 128, 255}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ flip);
        const Outcome outcome = outcome_of_bytes(bytes);
        if (outcome.code != 3 && !outcome.text.empty()) FAIL(name << " byte " << at << ": " << outcome.text);
        refused += outcome.code == 3;
      }
    CHECK(refused > 2000);
  }
}

TEST_CASE("a wrong byte of a pickle or of a tensor in a zip is found by its checksum") {
  const std::string whole = read_bytes(torch_file_path("zip.pth"));
  for (const char* part : {"_rebuild_tensor_v2", "transposed"}) {
    std::string bytes = whole;
    bytes[bytes.find(part)] ^= 1;
    CHECK_THAT(outcome_of_bytes(bytes).text, Catch::Contains("does not have its checksum; the file is damaged"));
  }
  std::string bytes = torch_zip(pickle_dict(pickle_text("w") + four_floats()) + ".", "0123456789abcdef");
  CHECK(outcome_of_bytes(bytes).code == 0);
  bytes[bytes.find("89ab")] ^= 1;
  CHECK_THAT(outcome_of_bytes(bytes).text, Catch::Contains("'f/data/0' of the zip does not have its checksum"));
}
