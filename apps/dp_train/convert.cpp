// dp_train convert: weights of PyTorch, or of a run, as a safetensors file.
#include <dp/checkpoint.h>
#include <dp/dp.h>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "subcommands.h"

namespace dp_train {
namespace {

namespace fs = std::filesystem;

void refuse_to_overwrite(const std::string& input, const std::string& output) {
  std::error_code ignored;
  if (!output.ends_with(".safetensors"))
    usage("--output " + output + ": a safetensors file is written; end its name in .safetensors");
  if (fs::equivalent(input, output, ignored))
    usage("--output " + output + " is the file that is read; choose another name");
  if (!fs::is_directory(input, ignored)) return;
  const fs::path folder = fs::weakly_canonical(input, ignored);
  for (fs::path parent = fs::weakly_canonical(fs::absolute(output, ignored), ignored); parent != parent.parent_path();)
    if ((parent = parent.parent_path()) == folder)
      usage("--output " + output + " is inside the folder that is read; choose a name outside it");
}

}  // namespace

void convert(const Command& command) {
  refuse_to_overwrite(command.convert, command.convert_output);
  dp::StoredWeights weights = dp::read_stored_weights(command.convert, command.convert_entry);
  if (weights.tensors.empty()) throw dp::Error(dp::ErrorCode::data, command.convert + " holds no tensors");
  weights.metadata.emplace("format", "pt");
  dp::write_safetensors(command.convert_output, weights.tensors, weights.metadata);
  std::int64_t values = 0;
  for (const auto& [name, tensor] : weights.tensors) values += tensor.numel();
  for (const std::string& change : weights.changes) std::printf("%s\n", dp::printable(change).c_str());
  std::printf("%s: %zu tensors, %lld values\n", dp::printable(command.convert_output).c_str(), weights.tensors.size(),
              static_cast<long long>(values));
}

}  // namespace dp_train
