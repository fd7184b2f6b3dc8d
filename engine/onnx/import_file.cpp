#include "engine/onnx/import_file.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "dp/error.h"

namespace dp::importing {
namespace {

// Reads the fields of a protobuf message without unpacking them.
class Wire {
 public:
  explicit Wire(std::string_view bytes) : bytes_(bytes) {}

  bool next() {  // the next field
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field = key >> 3;
    content = {};
    switch (key & 7) {
      case 0: varint(); break;
      case 1: content = take(8); break;
      case 2: content = take(varint()); break;
      case 5: content = take(4); break;
      default: refuse("is not an ONNX file: it has a field of an unknown kind");
    }
    return true;
  }
  std::uint64_t field = 0;
  std::string_view content;  // of a field with a length

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    refuse("is not an ONNX file: it has a number of more than 64 bits");
  }
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size()) refuse("is not an ONNX file, or it is cut off");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::string_view bytes_;
};

constexpr std::uint64_t kGraph = onnx::ModelProto::kGraphFieldNumber;
constexpr std::uint64_t kNode = onnx::GraphProto::kNodeFieldNumber;
constexpr std::uint64_t kInitializer = onnx::GraphProto::kInitializerFieldNumber;
constexpr std::uint64_t kRawData = onnx::TensorProto::kRawDataFieldNumber;
constexpr std::uint64_t kFloatData = onnx::TensorProto::kFloatDataFieldNumber;

// Error(data) if parsing would take much more memory than the file has.
void check_structure(std::string_view bytes) {
  std::uint64_t structure = bytes.size();
  int nodes = 0;
  for (Wire model(bytes); model.next();) {
    if (model.field != kGraph) continue;
    for (Wire graph(model.content); graph.next();) {
      if (graph.field == kNode) ++nodes;
      if (graph.field != kInitializer) continue;
      for (Wire tensor(graph.content); tensor.next();)
        if (tensor.field == kRawData || tensor.field == kFloatData) structure -= tensor.content.size();
    }
  }
  if (nodes > kMostNodes) refuse("has " + std::to_string(nodes) + " nodes, more than " + std::to_string(kMostNodes));
  if (structure > kMostStructure)
    refuse("has " + std::to_string(structure >> 20) + " MiB beside the values of its initializers, more than " +
           std::to_string(kMostStructure >> 20) + " MiB; export it without debugging information");
}

std::uint64_t number_of(const std::string& text, const onnx::TensorProto& tensor) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    refuse("tensor " + in_quotes(tensor.name()) + " is stored in another file, at a place that is not a number");
  return value;
}

}  // namespace

void refuse(const std::string& what) { throw Error(ErrorCode::data, what); }

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 80 ? "...'" : "'");
}

std::int64_t count_of(const Dims& dims) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t dim : dims) {
    if (dim < 0) refuse("a tensor has a negative size");
    if (dim == 0) empty = true;
    if (dim > 0 && count > kMostElements / dim) refuse("a tensor of " + to_string(dims) + " is too large");
    count *= std::max<std::int64_t>(dim, 1);
  }
  return empty ? 0 : count;
}

std::string to_string(const Dims& dims) {
  std::string out = "(";
  for (std::size_t i = 0; i < dims.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return out + ")";
}

std::string read_file(const std::string& path, std::uint64_t most_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    refuse(error ? "opening failed: " + error.message() : "is no file");
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) refuse("reading failed: " + error.message());
  if (size > most_bytes) refuse("has more than " + std::to_string(most_bytes) + " bytes");
  std::string bytes(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) refuse("cannot be read");
  return bytes;
}

onnx::ModelProto parse_model(std::string_view bytes) {
  if (bytes.size() > kMostBytes) refuse("has more than 2 GiB");
  if (bytes.empty()) refuse("is empty");
  check_structure(bytes);
  onnx::ModelProto model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    refuse("is not an ONNX file, or it is damaged");
  if (!model.has_graph()) refuse("is not an ONNX file: it has no graph");
  const std::int64_t opset = opset_of(model);
  if (opset < kFirstOpset)
    refuse("has operators of opset " + std::to_string(opset) + "; export it with opset " + std::to_string(kFirstOpset) +
           " or later, such as 17");
  return model;
}

std::int64_t opset_of(const onnx::ModelProto& model) {
  std::int64_t version = 0;
  for (const auto& opset : model.opset_import())
    if (opset.domain().empty() || opset.domain() == "ai.onnx") version = std::max(version, opset.version());
  return version;
}

int bytes_of_element(int data_type) {
  switch (data_type) {
    case onnx::TensorProto::BOOL:
    case onnx::TensorProto::UINT8:
    case onnx::TensorProto::INT8: return 1;
    case onnx::TensorProto::FLOAT16:
    case onnx::TensorProto::BFLOAT16: return 2;
    case onnx::TensorProto::FLOAT:
    case onnx::TensorProto::INT32: return 4;
    case onnx::TensorProto::DOUBLE:
    case onnx::TensorProto::INT64: return 8;
    default:
      refuse("a tensor has elements of type " + std::to_string(data_type) +
             "; accepted are float16, bfloat16, float32, float64, int8, uint8, int32, int64 and bool");
  }
}

std::string_view TensorData::bytes_of(const onnx::TensorProto& tensor) {
  const Dims dims(tensor.dims().begin(), tensor.dims().end());
  const auto bytes = static_cast<std::uint64_t>(count_of(dims) * bytes_of_element(tensor.data_type()));
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) return external(tensor, bytes);
  if (!tensor.has_raw_data()) return {};
  if (tensor.raw_data().size() != bytes)
    refuse("tensor " + in_quotes(tensor.name()) + " of " + to_string(dims) + " has " +
           std::to_string(tensor.raw_data().size()) + " bytes instead of " + std::to_string(bytes));
  return tensor.raw_data();
}

std::string_view TensorData::external(const onnx::TensorProto& tensor, std::uint64_t bytes) {
  std::string location;
  std::uint64_t offset = 0, length = bytes;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") offset = number_of(entry.value(), tensor);
    if (entry.key() == "length") length = number_of(entry.value(), tensor);
  }
  const std::string what = "tensor " + in_quotes(tensor.name()) + " is stored in the file " + in_quotes(location);
  if (folder_.empty()) refuse(what + ", which is not read here");
  if (location.empty() || location == "." || location == ".." || location.find('/') != std::string::npos ||
      location.find('\0') != std::string::npos)
    refuse(what + ", which is not a name in the folder of the model");
  const auto [found, added] = files_.try_emplace(location);
  File& file = found->second;
  if (added) {
    try {
      file.bytes = read_file(folder_ + "/" + location, std::uint64_t{1} << 40);
    } catch (const Error& error) {
      refuse(what + ", which cannot be used: it " + error.what());
    }
  }
  if (length != bytes || offset > file.bytes.size() || bytes > file.bytes.size() - offset)
    refuse(what + ", which does not have its " + std::to_string(bytes) + " bytes at " + std::to_string(offset));
  file.used += bytes;
  if (file.used > file.bytes.size()) refuse(what + ", where tensors overlap");
  return std::string_view(file.bytes).substr(offset, bytes);
}

}  // namespace dp::importing
