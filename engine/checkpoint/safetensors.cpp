#include "engine/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "data/formats/rgb_image.h"
#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/files.h"
#include "engine/base/machine.h"
#include "kernels/low_float.h"

namespace dp {
namespace {

// O_NONBLOCK: opening a pipe without a writer must not wait.
constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY;

FileHandle open_to_read(int folder, const char* path, int flags, const std::string& name) {
  if (name.find('\0') != std::string::npos) throw_data(name, "the path contains a zero byte");
  FileHandle file(file_ops().open(folder, path, flags, 0));
  if (!file && errno == ELOOP && (flags & O_NOFOLLOW))
    throw_data(name, "is a symbolic link; a checkpoint must not contain links");
  if (!file) throw_data_errno(name, "opening it", errno);
  return file;
}

}  // namespace

void MemorySource::read(std::uint64_t offset, std::span<std::byte> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
    throw_data(name_, "became shorter while it was read");
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

FileSource::FileSource(std::string path, FileHandle file) : path_(std::move(path)), file_(std::move(file)), size_(0) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_data_errno(path_, "reading its size", errno);
  if (!S_ISREG(status.st_mode))
    throw_data(path_, std::string(S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file") + "; name a file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::FileSource(const std::string& path)
    : FileSource(path, open_to_read(AT_FDCWD, path.c_str(), kFlags, path)) {}

FileSource::FileSource(const FileHandle& folder, const std::string& folder_path, const std::string& name)
    : FileSource(folder_path + "/" + name,
                 open_to_read(folder.get(), name.c_str(), kFlags | O_NOFOLLOW, folder_path + "/" + name)) {}

void FileSource::read(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = file_ops().pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_data_errno(path_, "reading at byte " + std::to_string(offset), errno);
    if (got == 0) throw_data(path_, "ends at byte " + std::to_string(offset) + "; it was truncated while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

nlohmann::json parse_small_json(const std::string& text, const std::string& name) try {
  constexpr std::size_t kMostValues = std::size_t{1} << 19;  // each takes up to 60 bytes of memory
  std::size_t values = 0;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json&) {
    if (depth > 4) throw_data(name, "is nested more than four deep");
    using Event = nlohmann::json::parse_event_t;
    const bool begins = event == Event::value || event == Event::array_start || event == Event::object_start;
    if (begins && ++values > kMostValues) throw_data(name, "has more than 524,288 values");
    return true;
  };
  nlohmann::json json = nlohmann::json::parse(text, check);
  if (!json.is_object()) throw_data(name, "is not a JSON object");
  return json;
} catch (const nlohmann::json::exception&) {  // its message may quote the file
  throw_data(name, "is not valid JSON; it is damaged");
}

nlohmann::json read_small_json(ByteSource& source, std::uint64_t longest) {
  if (source.size() > longest)
    throw_data(source.name(), "has " + std::to_string(source.size()) + " bytes, but at most " +
                                  std::to_string(longest) + " are expected");
  std::string text(source.size(), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  if (text.find('\0') != std::string::npos) throw_data(source.name(), "contains zero bytes; it is damaged");
  return parse_small_json(text, source.name());
}

namespace {

// The JSON parser buffers the current token and copies it for error messages. A limit on the distance between two
// quotation marks limits the token, and so the parser's memory, for any header length.
constexpr std::size_t kLongestToken = std::size_t{1} << 20;

void check_text(std::string_view json, const std::string& path) {
  if (json.empty() || json.front() != '{')
    throw_data(path, "its header does not begin with '{'; it is not a safetensors file");
  std::size_t token_begin = 0;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto c = static_cast<unsigned char>(json[i]);
    if (c < 32 && c != '\n' && c != '\r' && c != '\t')  // the parser treats a zero byte as the end
      throw_data(path,
                 "its header contains the control character " + std::to_string(c) + " at byte " + std::to_string(i));
    if (c == '"') token_begin = i;
    if (c == '\\') ++i;
    if (i - token_begin > kLongestToken) throw_data(path, "its header contains a token of more than 1 MiB");
  }
}

// Bytes of `entry` in the file; nothing if they exceed 64 bits.
std::optional<std::uint64_t> stored_bytes(const TensorEntry& entry) {
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(entry.shape.numel()), entry.stored->width, &bytes))
    return std::nullopt;
  return bytes;
}

void check_layout(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].name == tensors[i - 1].name)
      throw_data(path, "has two tensors named '" + excerpt(tensors[i].name) + "'");
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t expected = 0;
  for (const TensorEntry& entry : tensors) {
    const std::string tensor = "tensor '" + excerpt(entry.name) + "' ";
    const std::string range = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    if (entry.begin > entry.end) throw_data(path, tensor + "has data_offsets " + range + " in descending order");
    if (entry.end > data_bytes)
      throw_data(path, tensor + "has data_offsets " + range + " beyond the " + std::to_string(data_bytes) +
                           " bytes of data; the file is truncated");
    const std::optional<std::uint64_t> needs = stored_bytes(entry);
    if (!needs || *needs != entry.end - entry.begin)
      throw_data(path, tensor + "of shape " + to_string(entry.shape) + " does not match its data_offsets " + range);
    if (entry.begin != expected)
      throw_data(path, tensor + "begins at byte " + std::to_string(entry.begin) + " of the data, expected " +
                           std::to_string(expected) + ": a gap or an overlap");
    expected = entry.end;
  }
  if (expected != data_bytes)
    throw_data(
        path, "has " + std::to_string(data_bytes) + " bytes of data, but its tensors take " + std::to_string(expected));
}

bool unprintable(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) ||                         // C0, DEL, C1
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);  // line separators and bidirectional controls
}

}  // namespace

std::string fault_of_tensor_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > 1024) return "is longer than 1,024 bytes";
  if (name.find_first_of("/\\") != std::string_view::npos) return "contains a slash";
  if (name.front() == '.' || name.find("..") != std::string_view::npos) return "begins with a dot or contains '..'";
  for (std::size_t i = 0; i < name.size(); ++i) {  // the JSON parser has validated the UTF-8
    const auto at = [&](std::size_t k) -> char32_t { return i + k < name.size() ? name[i + k] & 0x3fu : 0u; };
    const auto lead = static_cast<unsigned char>(name[i]);
    const char32_t c = lead < 0x80             ? lead
                       : (lead & 0xe0) == 0xc0 ? (lead & 0x1fu) << 6 | at(1)
                       : (lead & 0xf0) == 0xe0 ? (lead & 0x0fu) << 12 | at(1) << 6 | at(2)
                                               : 0xfffd;  // a continuation byte, or a character beyond U+FFFF
    if (unprintable(c)) return "contains a control character";
  }
  return {};
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, const std::string& path) {
  check_text(json, path);
  SafetensorsHeader header;
  SafetensorsSax sax(header, path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);  // throws Error; never returns false
  check_layout(header.tensors, data_bytes, path);
  return header;
}

SafetensorsHeader read_safetensors_header(ByteSource& source) {
  const std::uint64_t size = source.size();
  std::array<std::uint8_t, 16> begin{};
  if (size >= begin.size()) source.read(0, std::as_writable_bytes(std::span(begin)));
  // A valid file can begin with the same bytes, which encode the length of its header. So `kind` counts only if that
  // length is impossible.
  const std::string kind = recognised(begin);
  if (size < 8) throw_data(source.name(), "has " + std::to_string(size) + " bytes; a safetensors file has at least 8");
  std::uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > std::min(kLongestHeader, size - 8))
    throw_data(source.name(),
               kind.empty() ? fmt::format("it is truncated, or not a safetensors file: its header would {}",
                                          length > size - 8 ? "end after the file"
                                                            : fmt::format("have more than {} bytes", kLongestHeader))
                            : "it is " + kind + "; safetensors.torch.save_file writes weights files");
  std::string json(length, '\0');
  source.read(8, std::as_writable_bytes(std::span(json)));
  SafetensorsHeader header = parse_safetensors_header(json, size - 8 - length, source.name());
  header.data_begin = 8 + length;
  return header;
}

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

namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are taken as they are");

// Value i is never stored before result i, so ascending order overwrites only values that were read.
template <typename From, auto Convert>
bool widen(std::span<std::byte> memory) {
  using To = typename std::invoke_result_t<decltype(Convert), From>::value_type;
  const std::size_t count = memory.size() / sizeof(To);
  const std::byte* const stored = memory.data() + (memory.size() - count * sizeof(From));
  for (std::size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, stored + i * sizeof from, sizeof from);
    const std::optional<To> to = Convert(from);
    if (!to) return false;
    std::memcpy(memory.data() + i * sizeof *to, &*to, sizeof *to);
  }
  return true;
}

template <typename Low>
std::optional<float> from_low(std::uint16_t bits) {
  return kernels::to_float(Low{bits});
}
// Float8 of PyTorch: e5m2 is the upper byte of a float16; e4m3fn has no infinity, and NaN only as 0x7f and 0xff.
std::optional<float> from_e5m2(std::uint8_t bits) {
  return kernels::to_float(kernels::Float16{static_cast<std::uint16_t>(bits << 8)});
}
std::optional<float> from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return std::copysign(value, bits & 0x80 ? -1.0f : 1.0f);
}
template <typename To, typename From>
std::optional<To> from_integer(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

constexpr StoredType kStoredTypes[] = {
    {"F32", "float32", 4, DType::f32},
    {"F64", "float64", 8, DType::f64},
    {"F16", "float16", 2, DType::f32, widen<std::uint16_t, from_low<kernels::Float16>>},
    {"BF16", "bfloat16", 2, DType::f32, widen<std::uint16_t, from_low<kernels::BFloat16>>},
    {"F8_E4M3", "float8_e4m3fn", 1, DType::f32, widen<std::uint8_t, from_e4m3>},
    {"F8_E5M2", "float8_e5m2", 1, DType::f32, widen<std::uint8_t, from_e5m2>},
    {"I64", "int64", 8, DType::i64},
    {"I32", "int32", 4, DType::i32},
    {"I16", "int16", 2, DType::i32, widen<std::int16_t, from_integer<std::int32_t, std::int16_t>>},
    {"I8", "int8", 1, DType::i32, widen<std::int8_t, from_integer<std::int32_t, std::int8_t>>},
    {"U64", "uint64", 8, DType::i64, widen<std::uint64_t, from_integer<std::int64_t, std::uint64_t>>},
    {"U32", "uint32", 4, DType::i64, widen<std::uint32_t, from_integer<std::int64_t, std::uint32_t>>},
    {"U16", "uint16", 2, DType::i32, widen<std::uint16_t, from_integer<std::int32_t, std::uint16_t>>},
    {"U8", "uint8", 1, DType::u8},
    {"BOOL", "bool", 1, DType::u8}};

Tensor read_tensor(ByteSource& source, const TensorEntry& entry, std::uint64_t data_begin) {
  Tensor tensor(entry.shape, entry.stored->type);
  const std::span<std::byte> memory(static_cast<std::byte*>(tensor.raw()), tensor.bytes());
  source.read(data_begin + entry.begin, memory.last(entry.end - entry.begin));
  if (entry.stored->widen && !entry.stored->widen(memory))
    throw_data(source.name(),
               "tensor '" + excerpt(entry.name) + "' has a value beyond the range of " + to_string(entry.stored->type));
  return tensor;
}

}  // namespace

const StoredType* find_stored_type(std::string_view spelling) {
  const auto* const found = std::ranges::find(kStoredTypes, spelling, &StoredType::spelling);
  return found == std::end(kStoredTypes) ? nullptr : found;
}

NamedTensors read_safetensors(ByteSource& source, std::map<std::string, std::string>* metadata,
                              std::map<std::string, std::string_view>* types) try {
  SafetensorsHeader header = read_safetensors_header(source);
  std::uint64_t needed = 0;
  for (const TensorEntry& entry : header.tensors) needed += entry.memory();  // at most four times the file size
  const std::uint64_t available = available_memory();
  if (needed > available)
    throw_data(source.name(),
               "needs " + std::to_string(needed) + " bytes of memory, but " + std::to_string(available) + " are free");
  NamedTensors tensors;
  tensors.reserve(header.tensors.size());
  for (TensorEntry& entry : header.tensors) {
    Tensor tensor = read_tensor(source, entry, header.data_begin);
    if (types) types->emplace(entry.name, entry.stored->name);
    tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  if (metadata) *metadata = std::move(header.metadata);
  return tensors;
} catch (const std::bad_alloc&) {
  throw_data(source.name(), "does not fit into memory");
}

NamedTensors read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata) {
  FileSource source(path);
  return read_safetensors(source, metadata);
}

namespace {

const char* file_spelling(DType type) {
  switch (type) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::u8: return "U8";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
  }
  return "";
}

std::string quoted(const std::string& text, const std::string& path) try {
  return nlohmann::json(text).dump();
} catch (const nlohmann::json::type_error&) {
  throw Error(ErrorCode::usage, path + ": '" + excerpt(text) + "' is not valid UTF-8");
}

// Sorts by descending element size, then by name.
NamedTensors in_file_order(const NamedTensors& tensors) {
  NamedTensors sorted = tensors;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const std::size_t width_a = size_of(a.second.dtype()), width_b = size_of(b.second.dtype());
    return width_a != width_b ? width_a > width_b : a.first < b.first;
  });
  return sorted;
}

// Returns the 8-byte length and the padded JSON.
std::string make_header(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                        const std::string& path) {
  std::string json = "{";
  const auto separate = [&] { return json.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      json += comma + quoted(key, path) + ":" + quoted(value, path);
      comma = ",";
    }
    json += "}";
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.empty() || !tensor.storage()->host_accessible())
      throw Error(ErrorCode::usage, path + ": tensor '" + excerpt(name) + "' has no host memory; copy it there first");
    json += separate() + quoted(name, path) + ":{\"dtype\":\"" + file_spelling(tensor.dtype()) + "\",\"shape\":[";
    for (int i = 0; i < tensor.shape().rank(); ++i) json += (i ? "," : "") + std::to_string(tensor.shape()[i]);
    json += "],\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + tensor.bytes()) + "]}";
    offset += tensor.bytes();
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = json.size();
  if (length > kLongestHeader)
    throw Error(ErrorCode::usage, path + ": the header would be longer than 100,000,000 bytes");
  try {
    parse_safetensors_header(json, offset, path);  // rejects a header that could not be read back
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, error.what());
  }
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + json;
}

}  // namespace

void write_tensors(FileWriter& file, const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  const NamedTensors sorted = in_file_order(tensors);
  file.write(make_header(sorted, metadata, file.path()));
  for (const auto& [name, tensor] : sorted)
    file.write(std::span(static_cast<const std::byte*>(tensor.raw()), tensor.bytes()));
}

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  replace_file(path, [&](FileWriter& file) { write_tensors(file, tensors, metadata); });
}

}  // namespace dp
