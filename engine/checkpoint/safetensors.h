// Readers and writers of safetensors, and the sources of bytes and JSON that they share with other parsers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dp/checkpoint.h"
#include "engine/base/files.h"

namespace dp {

// Input of a parser: a file, or bytes in memory (tests, fuzzing, a header before it is written).

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for error messages
  virtual std::uint64_t size() const = 0;
  // Fills `out` from byte `offset`. The range must be within size(). Error(data) if it cannot be read.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes) : name_(std::move(name)), bytes_(bytes) {}
  const std::string& name() const override { return name_; }
  std::uint64_t size() const override { return bytes_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> out) override;

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

// A regular file, open for the lifetime of this object. Error(data) for anything else.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  // Opens `name` in an open folder. Error(data) for a symbolic link.
  FileSource(const FileHandle& folder, const std::string& folder_path, const std::string& name);

  const std::string& name() const override { return path_; }
  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out) override;

 private:
  FileSource(std::string path, FileHandle file);

  std::string path_;
  FileHandle file_;
  std::uint64_t size_;
};

// Parses a record. The result is discarded (Json::is_discarded()) if the text is not valid JSON, or is nested deeper
// than 16 levels: copying, comparing and printing a value recurse.
template <typename Json>
Json parse_record(std::string_view text) {
  constexpr int kMostLevels = 16;
  bool deep = false;
  Json json = Json::parse(
      text,
      [&deep](int depth, typename Json::parse_event_t, Json&) {
        deep = deep || depth > kMostLevels;
        return !deep;
      },
      false);
  return deep ? Json(Json::value_t::discarded) : std::move(json);
}

// Parses a JSON object with at most four levels of nesting. Error(data) begins with `name`.
nlohmann::json parse_small_json(const std::string& text, const std::string& name);
// The same from a file of at most `longest` bytes.
nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest);

// The header of a safetensors file: names, types, shapes and offsets of its tensors.

// An element type of the format. Types that DType lacks, and 16-bit floats, are widened when they are read.
struct StoredType {
  std::string_view spelling;  // in the file: "BF16"
  std::string_view name;      // PyTorch's: "bfloat16"
  std::uint64_t width;        // bytes in the file
  DType type;                 // in memory
  // Converts values in place. The stored values occupy the end of `memory`. Null if no conversion is needed. False if
  // a value does not fit.
  bool (*widen)(std::span<std::byte> memory) = nullptr;
};
const StoredType* find_stored_type(std::string_view spelling);  // null if it is not supported

struct TensorEntry {
  std::string name;
  const StoredType* stored = nullptr;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes from the end of the header

  std::uint64_t memory() const { return static_cast<std::uint64_t>(shape.numel()) * size_of(stored->type); }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // offset of the first tensor's bytes in the file
};

inline constexpr std::uint64_t kLongestHeader = 100'000'000;

// Reads and validates the header without the tensors' data. Error(data) names the file and the fault.
SafetensorsHeader read_safetensors_header(ByteSource& source);
// `json`: the header's text. `data_bytes`: size of the data after it.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path);

// Why a tensor must not have this name; empty if it may. Names are never used as paths; the rules exclude path
// traversal nevertheless.
std::string fault_of_tensor_name(std::string_view name);

// Reads all tensors of a file, in file order. `types` receives PyTorch's name of the type of each in the file.
NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata = nullptr,
                              std::map<std::string, std::string_view>* types = nullptr);

// Converts the JSON of a safetensors header into entries during parsing. Error(data) at the first event that the format
// does not allow.
class SafetensorsSax final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsSax(SafetensorsHeader& header, const std::string& path) : header_(header), path_(path) {}

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("true or false"); }
  bool number_integer(number_integer_t) override { refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { refuse("a number that is not a 64-bit integer"); }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) override;

 private:
  // The scopes of a header, outermost first. The JSON is nested at most three levels deep.
  enum class Scope { outside, root, metadata, tensor, shape, offsets };

  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void fault(const std::string& what) const;
  TensorEntry& entry() { return header_.tensors.back(); }
  void set_type(std::string_view name);
  void tensor_key(std::string_view name);
  void finish_shape();

  SafetensorsHeader& header_;
  const std::string& path_;
  Scope scope_ = Scope::outside;
  std::string key_;  // of the next value, in the root and in metadata
  enum class Field { none, dtype, shape, offsets };
  Field field_ = Field::none;  // of the next value, in a tensor
  bool has_metadata_ = false, has_type_ = false, has_shape_ = false, has_offsets_ = false;
  std::array<std::int64_t, Shape::kMaxRank> dims_{};
  std::size_t values_ = 0;  // number of values read from the current array
};

// Writes a complete safetensors file. Error(usage), before any byte is written, for tensors that the format does not
// allow.
void write_tensors(FileWriter& file, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace dp
