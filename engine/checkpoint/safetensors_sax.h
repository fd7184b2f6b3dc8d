// Converts the JSON of a safetensors header into entries during parsing. Error(data) at the first event that the format
// does not allow.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/checkpoint/safetensors_header.h"

namespace dp {

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

}  // namespace dp
