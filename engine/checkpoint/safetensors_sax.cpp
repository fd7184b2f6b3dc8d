#include "engine/checkpoint/safetensors_sax.h"

#include <limits>

#include "engine/base/fault.h"

namespace dp {
namespace {

constexpr std::size_t kMostTensors = 10'000;
constexpr std::size_t kMostMetadata = 10'000;

}  // namespace

void SafetensorsSax::fault(const std::string& what) const {
  if (scope_ == Scope::tensor || scope_ == Scope::shape || scope_ == Scope::offsets)
    throw_data(path_, "tensor '" + excerpt(header_.tensors.back().name) + "' " + what);
  throw_data(path_, "its header " + what);
}

void SafetensorsSax::refuse(const std::string& what) const {
  switch (scope_) {
    case Scope::outside: fault("is " + what + ", not an object");
    case Scope::root: fault("describes the tensor '" + excerpt(key_) + "' by " + what + ", not by an object");
    case Scope::metadata: fault("has " + what + " in __metadata__, which maps strings to strings");
    case Scope::tensor:
      fault(std::string("has ") + what + " as its " +
            (field_ == Field::dtype   ? "dtype"
             : field_ == Field::shape ? "shape"
                                      : "data_offsets"));
    case Scope::shape: fault("has " + what + " in its shape");
    case Scope::offsets: fault("has " + what + " in its data_offsets");
  }
  fault("is damaged");
}

bool SafetensorsSax::start_object(std::size_t) {
  if (scope_ == Scope::outside) {
    scope_ = Scope::root;
  } else if (scope_ == Scope::root && key_ == "__metadata__") {
    if (has_metadata_) fault("has __metadata__ twice");
    has_metadata_ = true;
    scope_ = Scope::metadata;
  } else if (scope_ == Scope::root) {
    if (header_.tensors.size() == kMostTensors) fault("has more than 10,000 tensors");
    const std::string reason = fault_of_tensor_name(key_);
    if (!reason.empty()) fault("has the tensor name '" + excerpt(key_) + "', which " + reason);
    header_.tensors.emplace_back().name = key_;
    has_type_ = has_shape_ = has_offsets_ = false;
    scope_ = Scope::tensor;
  } else {
    refuse("an object");
  }
  return true;
}

bool SafetensorsSax::key(string_t& name) {
  if (scope_ == Scope::tensor) {
    tensor_key(name);
    return true;
  }
  if (scope_ == Scope::metadata) {
    if (header_.metadata.size() == kMostMetadata) fault("has more than 10,000 entries in __metadata__");
    if (header_.metadata.contains(name)) fault("has '" + excerpt(name) + "' twice in __metadata__");
  }
  key_ = std::move(name);
  return true;
}

void SafetensorsSax::tensor_key(std::string_view name) {
  bool* seen = nullptr;
  if (name == "dtype")
    field_ = Field::dtype, seen = &has_type_;
  else if (name == "shape")
    field_ = Field::shape, seen = &has_shape_;
  else if (name == "data_offsets")
    field_ = Field::offsets, seen = &has_offsets_;
  else
    fault("has the unknown key '" + excerpt(name) + "'");
  if (*seen) fault("has the key '" + std::string(name) + "' twice");
  *seen = true;
}

bool SafetensorsSax::end_object() {
  if (scope_ == Scope::tensor) {
    const char* missing = !has_type_ ? "dtype" : !has_shape_ ? "shape" : !has_offsets_ ? "data_offsets" : nullptr;
    if (missing) fault(std::string("has no ") + missing);
    scope_ = Scope::root;
  } else {
    scope_ = scope_ == Scope::metadata ? Scope::root : Scope::outside;
  }
  return true;
}

bool SafetensorsSax::string(string_t& value) {
  if (scope_ == Scope::metadata)
    header_.metadata.emplace(key_, value);  // copied, not moved: the parser's buffer has excess capacity
  else if (scope_ == Scope::tensor && field_ == Field::dtype)
    set_type(value);
  else
    refuse("a string");
  return true;
}

void SafetensorsSax::set_type(std::string_view name) {
  entry().stored = find_stored_type(name);
  if (entry().stored != nullptr) return;
  fault("has the dtype '" + excerpt(name) + "', which is not supported; convert it to F32");
}

bool SafetensorsSax::start_array(std::size_t) {
  if (scope_ != Scope::tensor || field_ == Field::dtype) refuse("a list");
  scope_ = field_ == Field::shape ? Scope::shape : Scope::offsets;
  values_ = 0;
  return true;
}

bool SafetensorsSax::number_unsigned(number_unsigned_t value) {
  if (scope_ == Scope::shape) {
    if (values_ == dims_.size()) fault("has more than 8 dimensions");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fault("has a dimension beyond 2^63");
    dims_[values_++] = static_cast<std::int64_t>(value);
  } else if (scope_ == Scope::offsets) {
    if (values_ == 2) fault("has more than two data_offsets");
    (values_++ == 0 ? entry().begin : entry().end) = value;
  } else {
    refuse("a number");
  }
  return true;
}

void SafetensorsSax::finish_shape() {
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < values_; ++i)
    if (__builtin_mul_overflow(elements, dims_[i], &elements)) fault("has more than 2^63 elements");
  entry().shape = Shape(std::span(dims_.data(), values_));
}

bool SafetensorsSax::end_array() {
  if (scope_ == Scope::shape)
    finish_shape();
  else if (values_ != 2)
    fault("needs two data_offsets");
  scope_ = Scope::tensor;
  return true;
}

bool SafetensorsSax::parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
  throw_data(path_, "its header is not valid JSON at byte " + std::to_string(position) + "; the file is damaged");
}

}  // namespace dp
