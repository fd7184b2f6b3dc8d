// Checks the sizes in an ONNX file before anything else uses them.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dp::importing {

using Dims = std::vector<std::int64_t>;

constexpr int kFirstOpset = 13;  // axes are inputs of Squeeze and Unsqueeze from here on
constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << 31) - 1;  // of a protobuf message
// Of a file without the values of its tensors. A parsed message takes up to 140 times as many bytes.
constexpr std::uint64_t kMostStructure = std::uint64_t{16} << 20;
constexpr int kMostNodes = 20'000;
constexpr std::int64_t kMostElements = std::int64_t{1} << 33;  // of a tensor

// Error(data) with this text.
[[noreturn]] void refuse(const std::string& what);
// A name or text of the file, in quotes: at most 80 characters, without control characters.
std::string in_quotes(std::string_view text);

// The product of dimensions that are not negative. Error(data) if it exceeds kMostElements.
std::int64_t count_of(const Dims& dims);
std::string to_string(const Dims& dims);

std::string read_file(const std::string& path, std::uint64_t most_bytes);

// Error(data) unless the bytes are a model with one graph, of accepted sizes and opset.
onnx::ModelProto parse_model(std::string_view bytes);
std::int64_t opset_of(const onnx::ModelProto& model);

// Values of tensors: those of a message, or of files in the folder of the model ("external data").
class TensorData {
 public:
  // Empty: external data are refused.
  explicit TensorData(std::string folder) : folder_(std::move(folder)) {}

  // The bytes of a tensor that stores them as bytes, little-endian; they are as many as its type and dimensions
  // require. Empty if it stores numbers in fields.
  std::string_view bytes_of(const onnx::TensorProto& tensor);

 private:
  std::string_view external(const onnx::TensorProto& tensor, std::uint64_t bytes);

  struct File {
    std::string bytes;
    std::uint64_t used = 0;
  };
  std::string folder_;
  std::map<std::string, File> files_;
};

int bytes_of_element(int data_type);  // Error(data) for a type that has no numbers

}  // namespace dp::importing
