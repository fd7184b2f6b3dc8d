// Files of torch.save: those that golden/make_torch_files.py wrote with PyTorch, and pickles made by hand.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace dp::test {

inline std::string torch_file_path(const std::string& name) { return std::string(DP_TORCH_FILES "/") + name; }

template <typename Number>
std::string little_bytes(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A zip file of stored entries.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file, directory;
  for (const auto& [name, content] : entries) {
    const auto crc = static_cast<std::uint32_t>(
        ::crc32(0, reinterpret_cast<const unsigned char*>(content.data()), static_cast<unsigned>(content.size())));
    const auto size = static_cast<std::uint32_t>(content.size()), at = static_cast<std::uint32_t>(file.size());
    const auto length = static_cast<std::uint16_t>(name.size());
    const std::string common = std::string(2, '\0') + std::string(6, '\0') + little_bytes(crc) + little_bytes(size) +
                               little_bytes(size) + little_bytes(length) + std::string(2, '\0');
    file += "PK\3\4" + std::string(2, '\0') + common + name + content;
    directory += "PK\1\2" + std::string(4, '\0') + common + std::string(10, '\0') + little_bytes(at) + name;
  }
  const auto count = static_cast<std::uint16_t>(entries.size());
  return file + directory + "PK\5\6" + std::string(4, '\0') + little_bytes(count) + little_bytes(count) +
         little_bytes(static_cast<std::uint32_t>(directory.size())) +
         little_bytes(static_cast<std::uint32_t>(file.size())) + std::string(2, '\0');
}

// A file of torch.save with this pickle of protocol 2 and one storage "0".
inline std::string torch_zip(const std::string& pickle, const std::string& storage = std::string(16, '\0')) {
  return zip_of({{"f/data.pkl", "\x80\2" + pickle}, {"f/data/0", storage}});
}

// Parts of pickles. A text has at most 255 bytes.

inline std::string pickle_text(const std::string& value) {
  return "U" + std::string(1, static_cast<char>(value.size())) + value;
}
inline std::string pickle_number(std::int32_t value) { return "J" + little_bytes(value); }
inline std::string pickle_global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string pickle_tuple(const std::vector<std::int32_t>& values) {
  std::string all = "(";
  for (const std::int32_t value : values) all += pickle_number(value);
  return all + "t";
}
inline std::string storage_of(std::int32_t elements, const std::string& type = "FloatStorage",
                              const std::string& key = "0", const std::string& more = "") {
  return "(" + pickle_text("storage") + pickle_global("torch", type) + pickle_text(key) + pickle_text("cpu") +
         pickle_number(elements) + more + "tQ";
}
inline std::string tensor_of_storage(const std::string& storage, std::int32_t offset,
                                     const std::vector<std::int32_t>& sizes, const std::vector<std::int32_t>& strides) {
  return pickle_global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + pickle_number(offset) +
         pickle_tuple(sizes) + pickle_tuple(strides) + "\x89}tR";
}
// Four floats.
inline std::string four_floats() { return tensor_of_storage(storage_of(4), 0, {4}, {1}); }
inline std::string pickle_dict(const std::string& pairs) { return "}(" + pairs + "u"; }

}  // namespace dp::test
