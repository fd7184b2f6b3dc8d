#include "checkpoint/hostile_corpus.h"

#include <cstring>

#include "checkpoint/files_support.h"

namespace dp::test {
namespace {

std::string length_only(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

// A file whose header has one tensor "t" with this JSON value, followed by four data bytes.
std::string tensor(const std::string& value) { return safetensors_bytes("{\"t\":" + value + "}", "1234"); }
std::string shaped(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return tensor("{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}");
}
std::string good(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) + "],\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}
std::string two(const std::string& a, const std::string& b) {
  return safetensors_bytes("{" + a + "," + b + "}", "1234");
}
std::string repeated(const std::string& text, int times) {
  std::string all;
  all.reserve(text.size() * static_cast<std::size_t>(times));
  for (int i = 0; i < times; ++i) all += text;
  return all;
}
std::string many_tensors() {
  std::string json = "{";
  for (int i = 0; i < 10001; ++i) json += (i ? "," : "") + good("t" + std::to_string(i), 0, 0);
  return safetensors_bytes(json + "}", "");
}
std::string many_metadata() {
  std::string json = "{\"__metadata__\":{";
  for (int i = 0; i < 10001; ++i) json += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  return safetensors_bytes(json + "}}", "");
}

}  // namespace

std::vector<BadFile> hostile_safetensors() {
  const std::string f32 = "\"F32\"";
  return {
      {"nothing", "", "has 0 bytes"},
      {"seven bytes", std::string(7, '\0'), "has 7 bytes"},
      {"an empty header", length_only(0, ""), "does not begin with '{'"},
      {"a length beyond the file", length_only(9, "{}"), "its header would end after the file"},
      {"a length beyond 2^63", length_only(~std::uint64_t{0}, "{}"), "its header would end after the file"},
      {"a length that wraps with 8", length_only(~std::uint64_t{0} - 7, "{}"), "its header would end after the file"},
      {"a zip archive", "PK\3\4abcdefghijklmnop", "it is a zip archive"},
      {"a zip archive of 16 bytes", "PK\3\4abcdefghijkl", "it is a zip archive"},
      {"a zip archive of 15 bytes", "PK\3\4abcdefghijk", "it is truncated, or not a safetensors file"},
      {"a leading space", safetensors_bytes(" {}", ""), "does not begin with '{'"},
      {"a byte order mark", safetensors_bytes("\xef\xbb\xbf{}", ""), "does not begin with '{'"},
      {"a list", safetensors_bytes("[]", ""), "does not begin with '{'"},
      {"an unfinished object", safetensors_bytes("{", ""), "not valid JSON"},
      {"text behind the object", safetensors_bytes("{}x", ""), "not valid JSON"},
      {"a second object", safetensors_bytes("{}{}", ""), "not valid JSON"},
      {"a zero byte and more behind it", safetensors_bytes(std::string("{}\0\0{", 5), ""), "control character 0"},
      {"the last control character", safetensors_bytes("{\"a\x1f\":{}}", ""), "control character 31 at byte 3"},
      {"a comment", safetensors_bytes("{/**/}", ""), "not valid JSON"},
      {"a trailing comma", safetensors_bytes("{" + good("a", 0, 4) + ",}", "1234"), "not valid JSON"},
      {"NaN", tensor("NaN"), "not valid JSON"},
      {"invalid UTF-8", safetensors_bytes("{\"\xff\":{}}", ""), "not valid JSON"},
      {"an overlong slash", safetensors_bytes("{\"a\xc0\xaf\":{}}", ""), "not valid JSON"},
      {"a lone surrogate", safetensors_bytes("{\"\\ud800\":{}}", ""), "not valid JSON"},
      {"a line break in a string", safetensors_bytes("{\"a\nb\":{}}", ""), "not valid JSON"},
      {"deep lists", safetensors_bytes("{\"a\":" + std::string(100000, '[') + "}", ""), "by a list"},
      {"deep objects", safetensors_bytes(repeated("{\"a\":", 100000), ""), "the unknown key 'a'"},
      {"deep metadata", safetensors_bytes(R"({"__metadata__":{"a":{"b":{}}}})", ""), "an object in __metadata__"},
      {"metadata that is no object", safetensors_bytes(R"({"__metadata__":"x"})", ""), "by a string"},
      {"a number in the metadata", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""), "a number in __metadata__"},
      {"null in the metadata", safetensors_bytes(R"({"__metadata__":{"a":null}})", ""), "null in __metadata__"},
      {"a list in the metadata", safetensors_bytes(R"({"__metadata__":{"a":[]}})", ""), "a list in __metadata__"},
      {"metadata as a list", safetensors_bytes(R"({"__metadata__":[]})", ""), "the tensor '__metadata__' by a list"},
      {"metadata twice", safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""), "__metadata__ twice"},
      {"a metadata key twice", safetensors_bytes(R"({"__metadata__":{"a":"1","\u0061":"2"}})", ""), "'a' twice in"},
      {"10,001 metadata entries", many_metadata(), "more than 10,000 entries"},
      {"10,001 tensors", many_tensors(), "more than 10,000 tensors"},
      {"a tensor twice", two(good("a", 0, 2), good("a", 2, 4)), "two tensors named 'a'"},
      {"a tensor twice, escaped", two(good("a", 0, 2), good("\\u0061", 2, 4)), "two tensors named 'a'"},
      {"null as a tensor", tensor("null"), "by null"},
      {"true as a tensor", tensor("true"), "by true or false"},
      {"a string as a tensor", tensor("\"x\""), "by a string"},
      {"an empty tensor", tensor("{}"), "'t' has no dtype"},
      {"a second tensor without dtype", two(good("a", 0, 2), R"("b":{"shape":[2],"data_offsets":[2,4]})"),
       "'b' has no dtype"},
      {"a second tensor without shape", two(good("a", 0, 2), R"("b":{"dtype":"U8","data_offsets":[2,4]})"),
       "'b' has no shape"},
      {"a second tensor without offsets", two(good("a", 0, 2), R"("b":{"dtype":"U8","shape":[2]})"),
       "'b' has no data_offsets"},
      {"no shape", tensor(R"({"dtype":"F32","data_offsets":[0,4]})"), "'t' has no shape"},
      {"no offsets", tensor(R"({"dtype":"F32","shape":[1]})"), "'t' has no data_offsets"},
      {"an unknown key", tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1})"), "unknown key 'x'"},
      {"a shape twice", tensor(R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})"), "'shape' twice"},
      {"a dtype twice", tensor(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "'dtype' twice"},
      {"offsets twice", tensor(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"data_offsets":[0,4]})"),
       "'data_offsets' twice"},
      {"an unknown dtype", shaped("\"F6_E2M3\"", "[4]", "[0,4]"),
       "'t' has the dtype 'F6_E2M3', which is not supported"},
      {"complex numbers", shaped("\"C64\"", "[4]", "[0,32]"), "'t' has the dtype 'C64'"},
      {"control characters as dtype", shaped("\"\\u001b[2J\"", "[4]", "[0,4]"), "'\\x1b[2J'"},
      {"a number as dtype", shaped("4", "[4]", "[0,4]"), "a number as its dtype"},
      {"a list as dtype", shaped("[]", "[4]", "[0,4]"), "a list as its dtype"},
      {"null as dtype", shaped("null", "[1]", "[0,4]"), "null as its dtype"},
      {"true as shape", shaped(f32, "true", "[0,4]"), "true or false as its shape"},
      {"a string as shape", shaped(f32, "\"1\"", "[0,4]"), "a string as its shape"},
      {"a number as offsets", shaped(f32, "[1]", "4"), "a number as its data_offsets"},
      {"an object as offsets", shaped(f32, "[1]", "{}"), "an object as its data_offsets"},
      {"an object in a shape", shaped(f32, "[{}]", "[0,4]"), "an object in its shape"},
      {"a list in the offsets", shaped(f32, "[1]", "[[0],4]"), "a list in its data_offsets"},
      {"a number as shape", shaped(f32, "1", "[0,4]"), "a number as its shape"},
      {"a list in a shape", shaped(f32, "[[1]]", "[0,4]"), "a list in its shape"},
      {"a negative dimension", shaped(f32, "[-1]", "[0,4]"), "a negative number in its shape"},
      {"a fractional dimension", shaped(f32, "[1.0]", "[0,4]"), "not a 64-bit integer"},
      {"a dimension of 2^63-1", shaped("\"U8\"", "[9223372036854775807]", "[0,4]"),
       "of shape (9223372036854775807,) does not match its data_offsets [0, 4)"},
      {"a dimension of 2^63", shaped(f32, "[9223372036854775808]", "[0,4]"), "a dimension beyond 2^63"},
      {"a dimension of 2^64", shaped(f32, "[18446744073709551616]", "[0,4]"), "not a 64-bit integer"},
      {"a product beyond 2^64", shaped(f32, "[4294967296,4294967296,4]", "[0,4]"), "more than 2^63 elements"},
      {"a product that wraps to one", shaped(f32, "[4294967297,4294967297]", "[0,4]"), "more than 2^63 elements"},
      {"bytes that wrap to four", shaped(f32, "[4611686018427387905]", "[0,4]"), "does not match"},
      {"huge dimensions and a zero", shaped(f32, "[9223372036854775807,3,0]", "[0,0]"), "more than 2^63 elements"},
      {"nine dimensions", shaped(f32, "[1,1,1,1,1,1,1,1,1]", "[0,4]"), "more than 8 dimensions"},
      {"no offset", shaped(f32, "[1]", "[]"), "needs two data_offsets"},
      {"one offset", shaped(f32, "[1]", "[4]"), "needs two data_offsets"},
      {"three offsets", shaped(f32, "[1]", "[0,4,8]"), "more than two data_offsets"},
      {"a negative offset", shaped(f32, "[1]", "[-4,0]"), "a negative number in its data_offsets"},
      {"an offset as text", shaped(f32, "[1]", "[\"0\",4]"), "a string in its data_offsets"},
      {"offsets backwards", shaped(f32, "[1]", "[4,0]"), "in descending order"},
      {"an offset beyond the file", shaped(f32, "[2]", "[0,8]"), "beyond the 4 bytes of data"},
      {"a terabyte in four bytes", shaped(f32, "[274877906944]", "[0,1099511627776]"), "beyond the 4 bytes"},
      {"a shape larger than its bytes", shaped(f32, "[2]", "[0,4]"), "does not match its data_offsets [0, 4)"},
      {"a shape smaller than its bytes", shaped(f32, "[]", "[0,3]"), "does not match"},
      {"a hole at the start", two(good("a", 1, 2), good("b", 2, 4)), "expected 0"},
      {"a hole", two(good("a", 0, 1), good("b", 2, 4)), "'b' begins at byte 2 of the data, expected 1"},
      {"an overlap", two(good("a", 0, 3), good("b", 2, 4)), "'b' begins at byte 2 of the data, expected 3"},
      {"the same bytes twice", two(good("a", 0, 4), good("b", 0, 4)), "expected 4"},
      {"an empty tensor inside another", two(good("a", 0, 4), good("b", 2, 2)), "expected 4"},
      {"bytes behind the last tensor", safetensors_bytes("{" + good("a", 0, 4) + "}", "12345"), "its tensors take 4"},
      {"data and no tensor", safetensors_bytes("{}", "1234"), "its tensors take 0"},
      {"a long name", safetensors_bytes("{" + good(std::string(1025, 'n'), 0, 0) + "}", ""), "longer than 1,024"},
      {"a string of 8 MiB", safetensors_bytes("{\"" + std::string(8 << 20, 'x') + "\":1}", ""),
       "token of more than 1 MiB"},
      {"8 MiB of escaped quotes", safetensors_bytes("{\"" + repeated("\\\"", 4 << 20) + "\":1}", ""),
       "more than 1 MiB"},
      {"8 MiB of blanks", safetensors_bytes("{" + std::string(8 << 20, ' ') + "}", ""), "token of more than 1 MiB"},
      {"8 MiB of digits", tensor(std::string(8 << 20, '1')), "token of more than 1 MiB"},
      {"a number of a million digits", tensor(std::string(1000000, '9')), "not valid JSON"},
  };
}

}  // namespace dp::test
