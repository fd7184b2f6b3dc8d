// Scratch folders, file bytes, and checkpoints whose content identifies their step.
#pragma once

#include <functional>
#include <string>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "support/temporary_folder.h"

namespace dp::test {

// Uses a memory file system if the system has one and TMPDIR is not set.
class ScratchFolder : public TemporaryFolder {
 public:
  ScratchFolder();
};

void write_bytes(const std::string& path, const std::string& bytes);
std::string read_bytes(const std::string& path);

// A safetensors file: the length of `json`, then `json`, then `data`.
std::string safetensors_bytes(const std::string& json, const std::string& data);

// Runs `body`. Returns the code and text of its dp::Error, or code 0 and no text.
struct Outcome {
  int code = 0;
  std::string text;
};
Outcome outcome_of(const std::function<void()>& body);

// A checkpoint at this step. The step determines every tensor value and the state.
Checkpoint checkpoint_at(std::int64_t step);
bool is_checkpoint_at(const Checkpoint& checkpoint, std::int64_t step);

// The number of hidden entries, which a save must not leave behind.
int count_hidden(const std::string& folder);

}  // namespace dp::test
