// Scratch folders, bytes of files, and checkpoints whose content tells their version.
#pragma once

#include <functional>
#include <string>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "support/temporary_folder.h"

namespace dp::test {

// It lies in memory where the system offers that and TMPDIR names no other place.
class ScratchFolder : public TemporaryFolder {
 public:
  ScratchFolder();
};

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);

// A safetensors file: the length of `json`, `json`, `data`.
std::string safetensors_bytes(const std::string& json, const std::string& data);

// Runs `body`; the code and text of the dp::Error that it throws, or code 0 and no text.
struct Outcome {
  int code = 0;
  std::string text;
};
Outcome outcome_of(const std::function<void()>& body);

// A checkpoint at this step: every value of every tensor, and the state, follow from it.
Checkpoint checkpoint_at(std::int64_t step);
bool is_checkpoint_at(const Checkpoint& checkpoint, std::int64_t step);

// The names in a folder that a save may not leave behind.
int count_hidden(const std::string& folder);

}  // namespace dp::test
