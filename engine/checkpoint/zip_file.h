// Reads the directory of a zip file without compression, such as torch.save writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/checkpoint/safetensors.h"

namespace dp {

struct ZipEntry {
  std::uint64_t header = 0;  // offset of its local header in the file
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // 0: unknown
};

// The entries by name. Error(data) names the file and the fault: an entry is compressed or encrypted, overlaps another
// one, or extends beyond the file.
using ZipDirectory = std::map<std::string, ZipEntry, std::less<>>;
ZipDirectory read_zip_directory(ByteSource& source);

// The offset of an entry's bytes in the file. Error(data) if its local header contradicts the directory, or if the
// bytes do not have the checksum that it states.
std::uint64_t checked_zip_entry(ByteSource& source, const std::string& name, const ZipEntry& entry);

}  // namespace dp
