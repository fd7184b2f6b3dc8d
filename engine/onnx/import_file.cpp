#include "engine/onnx/import_file.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "dp/error.h"

namespace dp::importing {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// What parsing allocates beside the bytes of the file, rounded up. An empty message takes two bytes of a file.
constexpr std::uint64_t kBytesOfMessage = 288, kBytesOfText = 64, kBytesOfNumber = 16;

// The memory that parsing a message would take, without parsing it.
std::uint64_t memory_of(CodedInputStream& file, const google::protobuf::Descriptor& message) {
  const auto require = [](bool whole) {
    if (!whole) refuse("is not an ONNX file, or it is cut off");
  };
  std::uint64_t memory = 0;
  while (const std::uint32_t tag = file.ReadTag()) {
    const auto kind = WireFormatLite::GetTagWireType(tag);
    if (kind != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      require(kind != WireFormatLite::WIRETYPE_START_GROUP && WireFormatLite::SkipField(&file, tag));
      memory += kBytesOfNumber;
      continue;
    }
    int size = 0;
    require(file.ReadVarintSizeAsInt(&size));
    const auto* const field = message.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field != nullptr && field->message_type() != nullptr) {
      const auto [limit, depth_left] = file.IncrementRecursionDepthAndPushLimit(size);
      require(depth_left >= 0);
      memory += kBytesOfMessage + memory_of(file, *field->message_type());
      require(file.DecrementRecursionDepthAndPopLimit(limit));
    } else {
      const bool numbers = field != nullptr && field->is_packable() && field->cpp_type() != field->CPPTYPE_FLOAT &&
                           field->cpp_type() != field->CPPTYPE_DOUBLE;
      memory += numbers ? kBytesOfNumber * static_cast<std::uint64_t>(size) : kBytesOfText;
      require(file.Skip(size));
    }
  }
  require(file.ConsumedEntireMessage());
  return memory;
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
  const auto* const begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
  CodedInputStream file(begin, static_cast<int>(bytes.size()));
  if (memory_of(file, *onnx::ModelProto::descriptor()) > kMostMemory)
    refuse("would take more than " + std::to_string(kMostMemory >> 20) +
           " MiB beside its weights; export it without debugging information");
  onnx::ModelProto model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    refuse("is not an ONNX file, or it is damaged");
  if (!model.has_graph()) refuse("is not an ONNX file: it has no graph");
  if (model.graph().node_size() > kMostNodes) refuse("has more than " + std::to_string(kMostNodes) + " nodes");
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
