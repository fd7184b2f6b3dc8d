#include "engine/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/crc32c.h"
#include "engine/base/files.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

namespace dp {
namespace {

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

bool is_checkpoint_name(std::string_view name) {
  return name == "last" || name == "best" || (name.starts_with("step-") && is_digits(name.substr(5)));
}

std::optional<Leftover> parse_leftover(std::string_view name) {
  if (!name.starts_with('.')) return std::nullopt;
  const std::size_t dot = name.find('.', 1);
  if (dot == std::string_view::npos || !is_checkpoint_name(name.substr(1, dot - 1))) return std::nullopt;
  const std::string_view tag = name.substr(dot + 1);
  if (!tag.starts_with("tmp-") && !tag.starts_with("old-")) return std::nullopt;
  const std::string_view numbers = tag.substr(4);
  const std::size_t dash = numbers.find('-');
  if (dash == std::string_view::npos || !is_digits(numbers.substr(0, dash)) || !is_digits(numbers.substr(dash + 1)))
    return std::nullopt;
  Leftover leftover{std::string(name.substr(1, dot - 1))};
  const auto [end, error] = std::from_chars(numbers.data(), numbers.data() + dash, leftover.owner);
  if (error != std::errc{} || leftover.owner <= 0) return std::nullopt;
  return leftover;
}

bool is_dead_or_own(pid_t owner) {
  if (owner == ::getpid()) return true;
  if (::kill(owner, 0) != 0) return errno == ESRCH;
  // An ended process stays listed until its parent waits for it. The init process of some containers never does.
  std::ifstream from("/proc/" + std::to_string(owner) + "/stat");
  std::string text;
  std::getline(from, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string state, skipped;
  long threads = 0;
  fields >> state;
  for (int i = 0; i < 16; ++i) fields >> skipped;
  return fields >> threads && state == "Z" && threads <= 1;  // with more threads, only the first one has ended
}

namespace {

void move(const std::string& from, const std::string& to) {
  if (file_ops().rename(from.c_str(), to.c_str()) != 0) throw_io_errno(to, "moving the new folder there", errno);
}

void move_back(const std::string& from, const std::string& to) { file_ops().rename(from.c_str(), to.c_str()); }

// Fallback for file systems without RENAME_EXCHANGE. Between the two renames the target is missing; find_checkpoint
// repairs that after a crash.
std::string replace_in_two(const std::string& temporary, const PathParts& target) {
  const std::string old = temporary_sibling(target, "old");
  move(target.path(), old);
  try {
    move(temporary, target.path());
    try {
      sync_folder(target.parent);
    } catch (...) {
      move_back(target.path(), temporary);
      throw;
    }
  } catch (...) {
    move_back(old, target.path());
    throw;
  }
  return old;
}

}  // namespace

std::string put_in_place(const std::string& temporary, const PathParts& target) {
  const std::string path = target.path();
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) throw_io_errno(path, "looking for it", errno);
    move(temporary, path);
    try {
      sync_folder(target.parent);
    } catch (...) {
      move_back(path, temporary);
      throw;
    }
    return {};
  }
  if (file_ops().exchange(temporary.c_str(), path.c_str()) != 0) {
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
      throw_io_errno(path, "replacing it with the new folder", errno);
    return replace_in_two(temporary, target);
  }
  try {
    sync_folder(target.parent);
  } catch (...) {
    file_ops().exchange(temporary.c_str(), path.c_str());
    throw;
  }
  return temporary;
}

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

namespace {

struct Candidate {
  std::string path, base;  // base: name of the checkpoint, also for a leftover of a killed save
  bool leftover = false;
  bool settled = true;     // no process can still be writing it
  std::int64_t step = -1;  // from state.json, unverified
};

// Search order: newest step first. On equal steps checkpoints precede leftovers, and `last` precedes step-N and `best`.
// Folders that may still be written are last.
bool before(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) {
    return std::tuple(!c.settled, -c.step, c.leftover, c.base != "last", c.base == "best", c.path);
  };
  return key(a) < key(b);
}

void read_headers(const std::string& path) {
  VerifiedCheckpoint files = open_checkpoint(path, Links::refuse);
  read_train_state(files.state);
  read_safetensors_header(files.model);
  read_safetensors_header(files.optimizer);
  if (files.average) read_safetensors_header(*files.average);
}

// Why the checkpoint cannot be read; empty if it can.
std::string fault_of(const std::string& path) try {
  read_headers(path);
  return {};
} catch (const Error& error) {
  return error.what();
}

// Throws ReadError if a read fails: the checkpoint may be good.
bool readable(const std::string& path) try {
  read_headers(path);
  return true;
} catch (const ReadError&) {
  throw;
} catch (const Error&) {
  return false;
}

std::vector<Candidate> list(const std::string& folder) {
  std::vector<Candidate> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const std::string path = folder + "/" + name;
    if (is_checkpoint_name(name))
      found.push_back({path, name, false, true, stated_step(path)});
    else if (const auto leftover = parse_leftover(name))
      found.push_back({path, leftover->base, true, is_dead_or_own(leftover->owner), stated_step(path)});
  }
  if (error) throw_data_errno(folder, "listing the checkpoints", error.value());
  std::sort(found.begin(), found.end(), before);
  return found;
}

// Moves a readable leftover of a killed save to the checkpoint's name if it is newer or the checkpoint is missing.
// Removes the other leftovers. If the checkpoint is present but unreadable, it and its readable leftovers stay: they
// may be the only copies.
void settle(const PathParts& target, const Candidate* current, const std::vector<const Candidate*>& leftovers) {
  const bool current_readable = current && readable(current->path);
  std::int64_t best = current ? current->step : -1;
  bool missing = !current;
  for (const Candidate* leftover : leftovers) {
    if (!readable(leftover->path)) {
      remove_tree(leftover->path);
    } else if (missing || (current_readable && leftover->step > best)) {
      sync_file(leftover->path + "/" + kManifestFile);  // the killed save may not have synced it
      sync_folder(leftover->path);
      const std::string replaced = put_in_place(leftover->path, target);
      if (!replaced.empty()) remove_tree(replaced);
      best = leftover->step;
      missing = false;
    } else if (current_readable || !current) {
      remove_tree(leftover->path);
    }
  }
}

void settle_all(const std::string& folder) {
  const std::vector<Candidate> found = list(folder);
  if (found.empty()) return;
  try {
    sync_folder(folder);  // a killed save may have renamed a leftover's replacement without a sync
  } catch (const Error&) {
    return;
  }
  std::map<std::string, std::vector<const Candidate*>> leftovers;  // newest first
  for (const Candidate& candidate : found)
    if (candidate.leftover && candidate.settled) leftovers[candidate.base].push_back(&candidate);
  for (const auto& left : leftovers) {
    const auto current = std::find_if(found.begin(), found.end(),
                                      [&](const Candidate& c) { return !c.leftover && c.base == left.first; });
    try {
      settle({folder, left.first}, current == found.end() ? nullptr : &*current, left.second);
    } catch (const Error&) {  // read-only folder, or a read failed: leftovers are read in place
    }
  }
}

}  // namespace

std::int64_t stated_step(const std::string& path) try {
  const FileHandle folder = open_folder(path, Links::refuse);
  FileSource state(folder, path, kStateFile);
  return read_train_state(state).step;
} catch (const Error&) {
  return -1;
}

void set_aside_after(const std::string& run_folder, std::int64_t step) {
  const std::string folder = run_folder + "/checkpoints";
  bool changed = false;
  for (const Candidate& candidate : list(folder)) {
    if (candidate.step <= step) continue;
    const std::string aside = folder + "/rewound-" + candidate.base;
    if (candidate.leftover) {
      if (!remove_tree(candidate.path)) throw_io_errno(candidate.path, "removing it", errno);
    } else {
      remove_tree(aside);
      if (file_ops().rename(candidate.path.c_str(), aside.c_str()) != 0)
        throw_io_errno(candidate.path, "renaming it", errno);
    }
    changed = true;
  }
  if (changed) sync_folder(folder);
}

std::string find_checkpoint(const std::string& run_folder, std::vector<PassedOver>* passed_over) {
  const std::string folder = run_folder + "/checkpoints";
  settle_all(folder);
  std::string chosen;
  for (const Candidate& candidate : list(folder)) {
    // After the choice, only checkpoints without a readable step may be newer. They are checked for `passed_over`.
    if (!chosen.empty() && (passed_over == nullptr || candidate.step >= 0 || candidate.leftover)) continue;
    const std::string fault = fault_of(candidate.path);
    if (fault.empty() && chosen.empty())
      chosen = candidate.path;
    else if (!fault.empty() && passed_over != nullptr && !candidate.leftover)
      passed_over->push_back({candidate.path, fault});
  }
  return chosen;
}

}  // namespace dp
