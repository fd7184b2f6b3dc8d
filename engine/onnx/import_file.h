// Reads an ONNX file, and checks its sizes before anything else uses them.
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

constexpr int kFirstOpset = 13;  // earlier ones have axes of Squeeze and Unsqueeze as attributes
constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << 31) - 1;  // of a protobuf message
constexpr std::uint64_t kMostMemory = std::uint64_t{256} << 20;     // of a parsed file beside its own bytes
constexpr int kMostNodes = 20'000;
constexpr std::int64_t kMostElements = std::int64_t{1} << 33;  // of one tensor

// Error(data) with this text.
[[noreturn]] void refuse(const std::string& what);
// A name or text of the file, in quotes: at most 80 characters, without control characters.
std::string in_quotes(std::string_view text);

// The number of elements. Error(data) if a dimension is negative, or beyond kMostElements.
std::int64_t count_of(const Dims& dims);
std::string to_string(const Dims& dims);

std::string read_file(const std::string& path, std::uint64_t most_bytes);

// Error(data) unless the bytes are a model with one graph, of accepted sizes and opset.
onnx::ModelProto parse_model(std::string_view bytes);
std::int64_t opset_of(const onnx::ModelProto& model);

// The values of initializers: in the file itself, or in files beside it ("external data"), which are read once.
class TensorData {
 public:
  // `folder`: where the files of external data are; empty: they are refused.
  explicit TensorData(std::string folder) : folder_(std::move(folder)) {}

  // The values as bytes, little-endian: as many as the type and dimensions require, or Error(data). Empty if the file
  // stores them as lists of numbers instead.
  std::string_view bytes_of(const onnx::TensorProto& tensor);

 private:
  std::string_view external(const onnx::TensorProto& tensor, std::uint64_t bytes);

  struct File {
    std::string bytes;
    std::uint64_t used = 0;  // bytes that tensors have taken; more than the file has: they overlap
  };
  std::string folder_;
  std::map<std::string, File> files_;
};

int bytes_of_element(int data_type);  // Error(data) for a type that has no numbers

}  // namespace dp::importing
