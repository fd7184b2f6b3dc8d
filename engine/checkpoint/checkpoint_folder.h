// The files of a checkpoint and the manifest that vouches for them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/checkpoint/byte_source.h"

namespace dp {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kAverageFile = "ema.safetensors";  // only where a moving average is kept
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";

struct FileRecord {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // crc32c
};
using Manifest = std::map<std::string, FileRecord>;  // by file name

std::string to_json(const Manifest& manifest);
// Error(data) unless it lists just the files of a checkpoint, so that no name from outside is ever opened.
Manifest read_manifest(ByteSource& source);

enum class Links { follow, refuse };  // whether the folder itself may be a symbolic link; its files never are

FileHandle open_folder(const std::string& path, Links links);  // Error(data)

// A checkpoint whose files have the sizes and checksums of its manifest. The files stay open, so what was verified is
// what is read whatever happens to the folder's name meanwhile.
struct VerifiedCheckpoint {
  FileSource model, optimizer, state;
  std::optional<FileSource> average;
};
VerifiedCheckpoint open_checkpoint(const std::string& path, Links links);  // Error(data)

// What state.json says, unverified; -1 when it can not be read.
std::int64_t stated_step(const std::string& path);

// A run that goes on from `step` leaves behind what it had saved later: those checkpoints become rewound-<name>, which
// is never taken for one, and what killed saves left of later steps is removed. Under the run's lock. Error(io).
void set_aside_after(const std::string& run_folder, std::int64_t step);

}  // namespace dp
