#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "checkpoint/files_support.h"
#include "checkpoint/torch_files.h"
#include "dp/error.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/torch_file.h"
#include "support/catch.h"
#include "support/refusal.h"

using namespace dp;
using namespace dp::test;
using Catch::Contains;

namespace {

TorchFile read_bytes_of(const std::string& bytes, const std::string& entry = {}) {
  MemorySource source("f", std::as_bytes(std::span(bytes)));
  return read_torch_file(source, entry);
}
TorchFile read_golden(const std::string& name, const std::string& entry = {}) {
  FileSource source(torch_file_path(name));
  return read_torch_file(source, entry);
}

const Tensor& find(const TorchFile& file, const std::string& name) {
  const auto found = std::ranges::find(file.tensors, name, [](const auto& one) { return one.first; });
  REQUIRE(found != file.tensors.end());
  return found->second;
}

std::vector<double> values(const TorchFile& file, const std::string& name) {
  const Tensor wide = find(file, name).to(DType::f64);
  return {wide.span<double>().begin(), wide.span<double>().end()};
}

std::set<std::string> names(const TorchFile& file) {
  std::set<std::string> all;
  for (const auto& [name, tensor] : file.tensors) all.insert(name);
  return all;
}

}  // namespace

TEST_CASE("files of torch.save have PyTorch's values, in either format and in protocol 4") {
  const std::string name = GENERATE("zip.pth", "protocol4.pth", "legacy.pth");
  INFO(name);
  const TorchFile file = read_golden(name);
  CHECK(file.tensors.size() == 15);
  CHECK(file.tensors.front().first == "matrix");  // in the order of the state dict
  CHECK(file.entry.empty());
  CHECK(file.passed_over.empty());
  std::vector<double> matrix(24), transposed;
  std::iota(matrix.begin(), matrix.end(), 0.0);
  for (int column = 0; column < 6; ++column)
    for (int row = 0; row < 4; ++row) transposed.push_back(6 * row + column);
  CHECK(values(file, "matrix") == matrix);
  CHECK(find(file, "transposed").shape() == Shape{6, 4});
  CHECK(values(file, "transposed") == transposed);
  CHECK(values(file, "column") == std::vector<double>{2, 8, 14, 20});
  CHECK(values(file, "part") == std::vector<double>{5, 6, 7, 8});
  CHECK(values(file, "parameter") == std::vector<double>{20, 21, 22, 23});
  CHECK(values(file, "double") == std::vector<double>{0.1, -0.2});
  CHECK(values(file, "half") == std::vector<double>{0.5, -2, 65504});
  const std::vector<double> bfloat = values(file, "bfloat");
  CHECK(bfloat[1] == -0.15625);
  CHECK(std::abs(bfloat[2] / 3e38 - 1) < 1.0 / 256);
  CHECK(find(file, "steps").shape() == Shape{});
  CHECK(find(file, "steps").data<std::int64_t>()[0] == 7);
  CHECK(values(file, "int") == std::vector<double>{-2147483648.0, 5});
  CHECK(values(file, "short") == std::vector<double>{-300, 300});
  CHECK(values(file, "char") == std::vector<double>{-128, 127});
  CHECK(values(file, "byte") == std::vector<double>{0, 255});
  CHECK(values(file, "bool") == std::vector<double>{1, 0});
  CHECK(find(file, "empty").shape() == Shape{0, 4});
  CHECK(find(file, "half").dtype() == DType::f32);
  CHECK(find(file, "bool").dtype() == DType::u8);
  CHECK(find(file, "char").dtype() == DType::i32);
  CHECK(file.types.at("half") == "float16");
  CHECK(file.types.at("bfloat") == "bfloat16");
}

TEST_CASE("tensors whose types have no storage class of their own, and another byte order") {
  const TorchFile newer = read_golden("newer.pth");
  CHECK(values(newer, "float8") == std::vector<double>{0.5, 448});
  CHECK(values(newer, "unsigned") == std::vector<double>{1, 65535});
  CHECK(newer.types.at("float8") == "float8_e4m3fn");
  CHECK(values(read_golden("big_endian.pth"), "values") == std::vector<double>{0, 1, 2, 3});
}

TEST_CASE("the state dict of a training script's checkpoint is found, its average first") {
  const std::set<std::string> inner{
      "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"};
  const TorchFile average = read_golden("checkpoint.pth");
  CHECK(average.entry == "model_ema");
  std::set<std::string> of_module;
  for (const std::string& name : inner) of_module.insert("module." + name);
  CHECK(names(average) == of_module);  // without n_averaged
  CHECK_THAT(average.passed_over,
             Contains("'model', 'optimizer', 'lr_scheduler', 'epoch'") && Contains("'args', 'n_averaged'"));
  const TorchFile model = read_golden("checkpoint.pth", "model");
  CHECK(names(model) == inner);
  CHECK(values(model, "1.bias") != values(average, "module.1.bias"));  // the average is older by a step
  CHECK_THAT(refusal_of([] { read_golden("checkpoint.pth", "optimizer"); }, ErrorCode::data),
             Contains("has no state dict 'optimizer'; its entries are 'model', 'model_ema'"));
  const TorchFile legacy = read_golden("checkpoint_legacy.pth");
  CHECK(legacy.entry == "state_dict");
  CHECK(names(legacy) == inner);
  CHECK(values(legacy, "0.weight").size() == 6);
}

TEST_CASE("a checkpoint of PyTorch becomes stored weights, with a line for each change") {
  const StoredWeights average = read_stored_weights(torch_file_path("checkpoint.pth"));
  CHECK(average.tensors.size() == 7);
  CHECK(average.tensors.front().first == "0.weight");
  std::string text;
  for (const std::string& change : average.changes) text += change + "\n";
  CHECK_THAT(text, Contains("'model_ema' of the checkpoint read\n") && Contains("passed over: 'model', 'optimizer'") &&
                       Contains("'module.' stripped from names ('0.weight', '0.bias', '1.weight' and 4 more)\n"));
  const StoredWeights plain = read_stored_weights(torch_file_path("zip.pth"));
  text.clear();
  for (const std::string& change : plain.changes) text += change + "\n";
  CHECK_THAT(text, Contains("converted from float16 to float32 ('half')\n") &&
                       Contains("converted from bool to uint8 ('bool')\n"));
  CHECK(read_torch_file(torch_file_path("zip.pth")).size() == 15);
}

TEST_CASE("an entry is chosen by its name, or because it is the only state dict") {
  const std::string other = pickle_dict(pickle_text("w") + four_floats());
  const auto entry_of = [&](const std::vector<std::string>& keys) {
    std::string pairs = pickle_text("lr") + pickle_number(1);
    for (const std::string& key : keys) pairs += pickle_text(key) + other;
    return read_bytes_of(torch_zip(pickle_dict(pairs) + ".")).entry;
  };
  CHECK(entry_of({"net"}) == "net");
  CHECK(entry_of({"teacher", "model"}) == "model");
  CHECK(entry_of({"model", "state_dict"}) == "state_dict");
  CHECK(entry_of({"state_dict", "state_dict_ema"}) == "state_dict_ema");
  CHECK_THAT(refusal_of(
                 [&] {
                   entry_of({"student", "teacher"});
                 },
                 ErrorCode::data),
             Contains("has several state dicts: 'student', 'teacher'; take one: dp_train convert FILE --entry NAME"));
}

TEST_CASE("what a state dict has beside tensors is passed over") {
  const std::string extra = pickle_dict(pickle_text("scale") + four_floats());
  const TorchFile file =
      read_bytes_of(torch_zip(pickle_dict(pickle_text("w") + four_floats() + pickle_text("fp8._extra_state") + extra +
                                          pickle_text("version") + pickle_number(2) + pickle_text("none") + "N") +
                              "."));
  CHECK(file.entry.empty());
  CHECK(names(file) == std::set<std::string>{"w"});
  CHECK(file.passed_over == "'fp8._extra_state', 'version', 'none'");
}

TEST_CASE("pickles of Python 2 and of parameters of old files are read") {
  // OrderedDict([['a', tensor]]), and Parameter(tensor) whose state is (requires_grad, volatile, hooks)
  const std::string pairs = "](](" + pickle_text("a") + four_floats() + "ee";
  const std::string ordered = pickle_global("collections", "OrderedDict") + "(" + pairs + "tR.";
  CHECK(names(read_bytes_of(torch_zip(ordered))) == std::set<std::string>{"a"});
  const std::string parameter =
      pickle_global("torch.nn.parameter", "Parameter") + four_floats() + "\x85\x81(\x88\x89Ntb";
  CHECK(names(read_bytes_of(torch_zip(pickle_dict(pickle_text("p") + parameter) + "."))) == std::set<std::string>{"p"});
  const std::string first = pickle_global("torch._utils", "_rebuild_tensor") + "(" + storage_of(4) + pickle_number(2) +
                            pickle_tuple({2}) + pickle_tuple({1}) + "tR";
  const std::string floats = little_bytes(0.0f) + little_bytes(1.0f) + little_bytes(2.0f) + little_bytes(3.0f);
  const TorchFile file = read_bytes_of(torch_zip(pickle_dict(pickle_text("t") + first) + ".", floats));
  CHECK(values(file, "t") == std::vector<double>{2, 3});
}

TEST_CASE("a part of a storage in the older format") {
  const std::string floats = little_bytes(0.0f) + little_bytes(1.0f) + little_bytes(2.0f) + little_bytes(3.0f);
  const auto file_of = [&](std::int32_t begin, std::int32_t size, std::int32_t offset) {
    const std::string part = "(" + pickle_text("1") + pickle_number(begin) + pickle_number(size) + "t";
    const std::string tensor = tensor_of_storage(storage_of(4, "FloatStorage", "0", part), offset, {2}, {1});
    const std::string magic("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
    return magic + "\x80\2M" + little_bytes(std::uint16_t{1001}) + ".\x80\2}.\x80\2" +
           pickle_dict(pickle_text("t") + tensor) + ".\x80\2](" + pickle_text("0") + "e." +
           little_bytes(std::uint64_t{4}) + floats;
  };
  CHECK(values(read_bytes_of(file_of(1, 3, 1)), "t") == std::vector<double>{2, 3});
  CHECK_THAT(refusal_of([&] { read_bytes_of(file_of(1, 3, 2)); }, ErrorCode::data), Contains("ends after its storage"));
  CHECK_THAT(refusal_of([&] { read_bytes_of(file_of(2, 3, 0)); }, ErrorCode::data), Contains("ends after it"));
}

TEST_CASE("what is not a state dict of tensors is refused by name") {
  const auto refusal = [](const std::string& name) { return refusal_of([&] { read_golden(name); }, ErrorCode::data); };
  CHECK_THAT(refusal("module.pth"), Contains("names torch.nn.modules.container.Sequential") &&
                                        Contains("torch.save(model.state_dict(), path)"));
  CHECK_THAT(refusal("complex.pth"), Contains("tensor 'values' has the dtype complex64, which is not supported"));
  CHECK_THAT(refusal("sparse.pth"), Contains("names torch._utils._rebuild_sparse_tensor"));
  CHECK_THAT(refusal("expanded.pth"), Contains("tensor 'values' repeats elements"));
}

TEST_CASE("a safetensors file is not taken for a file of torch.save, whatever the length of its header") {
  const auto is_torch = [](const std::string& bytes) {
    MemorySource source("f", std::as_bytes(std::span(bytes)));
    return is_torch_file(source);
  };
  CHECK_FALSE(is_torch(little_bytes(std::uint64_t{0x04034b50}) + "{}"));
  CHECK_FALSE(is_torch(little_bytes(std::uint64_t{0x0280}) + "{}"));
  CHECK_FALSE(is_torch(""));
  for (const char* name : {"zip.pth", "legacy.pth", "protocol4.pth"})
    CHECK(is_torch(read_bytes(torch_file_path(name))));
}
