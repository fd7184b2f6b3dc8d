#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <tuple>
#include <vector>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/durable.h"
#include "engine/base/fault.h"
#include "engine/base/file_ops.h"
#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/put_in_place.h"
#include "engine/checkpoint/safetensors_header.h"
#include "engine/checkpoint/train_state.h"

namespace dp {
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

// Why the checkpoint cannot be read; empty if it can.
std::string fault_of(const std::string& path) try {
  VerifiedCheckpoint files = open_checkpoint(path, Links::refuse);
  read_train_state(files.state);
  read_safetensors_header(files.model);
  read_safetensors_header(files.optimizer);
  if (files.average) read_safetensors_header(*files.average);
  return {};
} catch (const Error& error) {
  return error.what();
}

bool readable(const std::string& path) { return fault_of(path).empty(); }

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
    } catch (const Error&) {  // read-only folder: leftovers are read in place
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
