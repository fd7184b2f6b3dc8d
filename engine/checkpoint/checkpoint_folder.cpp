#include "engine/checkpoint/checkpoint_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <vector>

#include "engine/base/crc32c.h"
#include "engine/base/fault.h"
#include "engine/base/file_ops.h"
#include "engine/checkpoint/small_json.h"

namespace dp {
namespace {

constexpr const char* kFormat = "dp-checkpoint-1";
constexpr std::uint64_t kLongestManifest = 1 << 16;
constexpr std::array kListed = {kModelFile, kOptimizerFile, kStateFile};

std::string hexadecimal(std::uint32_t value) {
  std::string text(8, '0');
  for (std::size_t i = 0; i < 8; ++i) text[7 - i] = "0123456789abcdef"[(value >> (4 * i)) & 15];
  return text;
}

FileRecord read_record(const nlohmann::json& json, const std::string& path, const std::string& name) {
  FileRecord record;
  const auto bytes = json.find("bytes"), crc = json.find("crc32c");
  if (bytes == json.end() || !bytes->is_number_unsigned()) throw_data(path, "has no size for " + name);
  record.bytes = bytes->get<std::uint64_t>();
  const std::string text = crc != json.end() && crc->is_string() ? crc->get<std::string>() : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), record.crc, 16);
  if (text.size() != 8 || error != std::errc{} || end != text.data() + 8)
    throw_data(path, "has no checksum for " + name);
  return record;
}

FileSource open_verified(const FileHandle& folder, const std::string& path, const Manifest& manifest,
                         const char* name) {
  FileSource file(folder, path, name);
  const FileRecord& record = manifest.at(name);
  if (file.size() != record.bytes)
    throw_data(file.name(),
               "has " + std::to_string(file.size()) + " bytes, but the manifest says " + std::to_string(record.bytes));
  std::vector<std::byte> block(std::min<std::uint64_t>(1 << 20, file.size()));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < file.size();) {
    const std::span part = std::span(block).first(std::min<std::uint64_t>(block.size(), file.size() - at));
    file.read(at, part);
    crc = crc32c(part, crc);
    at += part.size();
  }
  if (crc != record.crc)
    throw_data(file.name(),
               "has the checksum " + hexadecimal(crc) + ", but the manifest says " + hexadecimal(record.crc));
  return file;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, record] : manifest)
    files[name] = {{"bytes", record.bytes}, {"crc32c", hexadecimal(record.crc)}};
  return nlohmann::ordered_json{{"format", kFormat}, {"files", files}}.dump(2) + "\n";
}

Manifest read_manifest(ByteSource& source) {
  const nlohmann::json json = read_small_json(source, kLongestManifest);
  const auto format = json.find("format"), files = json.find("files");
  if (format == json.end() || *format != kFormat)
    throw_data(source.name(), std::string("is not of the format ") + kFormat);
  if (files == json.end() || !files->is_object()) throw_data(source.name(), "lists no files");
  Manifest manifest;
  for (const auto& [name, record] : files->items()) {
    if (name != kAverageFile && std::find(kListed.begin(), kListed.end(), name) == kListed.end())
      throw_data(source.name(), "lists '" + excerpt(name) + "', which is not a checkpoint file");
    if (!record.is_object()) throw_data(source.name(), "has no size for " + name);
    manifest[name] = read_record(record, source.name(), name);
  }
  for (const char* name : kListed)
    if (!manifest.contains(name)) throw_data(source.name(), std::string("does not list ") + name);
  return manifest;
}

FileHandle open_folder(const std::string& path, Links links) {
  const int flags = O_RDONLY | O_DIRECTORY | (links == Links::refuse ? O_NOFOLLOW : 0);
  if (path.find('\0') != std::string::npos) throw_data(path, "the path contains a zero byte");
  FileHandle folder(file_ops().open(AT_FDCWD, path.c_str(), flags, 0));
  if (!folder) throw_data_errno(path, "opening the checkpoint's folder", errno);
  return folder;
}

VerifiedCheckpoint open_checkpoint(const std::string& path, Links links) {
  const FileHandle folder = open_folder(path, links);
  FileSource manifest_file(folder, path, kManifestFile);
  const Manifest manifest = read_manifest(manifest_file);
  return {open_verified(folder, path, manifest, kModelFile), open_verified(folder, path, manifest, kOptimizerFile),
          open_verified(folder, path, manifest, kStateFile),
          manifest.contains(kAverageFile) ? std::optional(open_verified(folder, path, manifest, kAverageFile))
                                          : std::nullopt};
}

}  // namespace dp
