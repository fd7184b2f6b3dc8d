// Names, replacement and recovery of checkpoint folders.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/files.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {

// The names of folders under <run>/checkpoints.

bool is_checkpoint_name(std::string_view name);  // last, best, step-N

// ".<base>.tmp-<pid>-<n>" is an unfinished save or the folder that a save replaced. ".<base>.old-<pid>-<n>" is always
// the folder that a save replaced.
struct Leftover {
  std::string base;
  pid_t owner = 0;
};
std::optional<Leftover> parse_leftover(std::string_view name);

// Whether no save by process `owner` can be running: it is this process, or it has ended. If in doubt, false.
bool is_dead_or_own(pid_t owner);

// Durably renames `temporary`, a sibling of `target`, to `target`. Returns the new path of the folder that it replaced,
// or empty if there was none. On Error(io) both are unchanged.
std::string put_in_place(const std::string& temporary, const PathParts& target);

// The files of a checkpoint and the manifest with their sizes and checksums.

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kAverageFile = "ema.safetensors";  // only with a moving average
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";

struct FileRecord {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // crc32c
};
using Manifest = std::map<std::string, FileRecord>;  // by file name

std::string to_json(const Manifest& manifest);
// Error(data) unless it lists exactly the files of a checkpoint (kAverageFile is optional). No other name is opened.
Manifest read_manifest(ByteSource& source);

// The checkpoint `best` of a run, or else `last`, or the folder itself if it is a checkpoint. Error(data) otherwise.
std::string checkpoint_in(const std::string& folder);

enum class Links { follow, refuse };  // whether the folder itself may be a symbolic link; its files may not

FileHandle open_folder(const std::string& path, Links links);  // Error(data)

// A checkpoint whose files match the sizes and checksums in its manifest. The files stay open: later reads return the
// verified files even if the folder is renamed or replaced.
struct VerifiedCheckpoint {
  FileSource model, optimizer, state;
  std::optional<FileSource> average;
};
VerifiedCheckpoint open_checkpoint(const std::string& path, Links links);  // Error(data)

// The step in state.json, without verification of its checksum; -1 if it cannot be read.
std::int64_t stated_step(const std::string& path);

// Sets aside what a run saved after `step`, because the run continues from `step`. Later checkpoints are renamed to
// rewound-<name>, which is not a checkpoint name. Later leftovers of killed saves are deleted. The caller holds the
// run's lock. Error(io).
void set_aside_after(const std::string& run_folder, std::int64_t step);

}  // namespace dp
