// Broken or foreign checkpoints as --resume.
#include <algorithm>
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

const std::vector<std::string> kMnistRun{"--dataset", "mnist", "--data-path", ".",  "--model",
                                         "mlp",       "--cpu", "1",           "-b", "32"};

// `more`, plus the default flags that it does not set.
std::vector<std::string> tiny(std::vector<std::string> more) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < kMnistRun.size(); i += 2)
    if (std::find(more.begin(), more.end(), kMnistRun[i]) == more.end())
      rest.insert(rest.end(), {kMnistRun[i], kMnistRun[i + 1]});
  rest.insert(rest.end(), more.begin(), more.end());
  return rest;
}

std::size_t size_of_folder(const std::string& folder) {
  std::size_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

TEST_CASE("resuming rejects unreadable checkpoints and those of another run") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  const Outcome good = run_dp_train(tiny({"--output-dir", "run"}), temp.path());
  INFO(good.err);
  REQUIRE(good.code == 0);
  const std::string last = temp / "run/checkpoints/last", copy = temp / "copy";
  const std::size_t size = size_of_folder(last);

  const auto refuses = [&](int code, const std::vector<std::string>& arguments,
                           const std::vector<std::string>& fragments) {
    check_bad_input({tiny(arguments), code, fragments, size}, temp.path());
  };
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}) {
    const auto broken = [&](auto damage) {
      fs::remove_all(copy);
      fs::copy(last, copy, fs::copy_options::recursive);
      damage(copy + "/" + file);
      refuses(3, {"--output-dir", "other", "--resume", copy}, {copy, "with --resume"});
    };
    broken([](const std::string& path) { fs::remove(path); });
    broken([](const std::string& path) { fs::resize_file(path, 0); });
    broken([](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); });
    broken([](const std::string& path) {
      std::string bytes = read_text(path);
      bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x11);
      write_text(path, bytes);
    });
    broken([](const std::string& path) { write_text(path, std::string(1000, '{')); });
    broken([](const std::string& path) {
      fs::remove(path);
      fs::create_directory(path);
    });
  }
  fs::remove_all(copy);
  fs::create_directory(copy);
  refuses(3, {"--output-dir", "other", "--resume", copy}, {copy, "give a checkpoint or run folder"});
  refuses(3, {"--output-dir", "other", "--init", temp / kTrainImages}, {kTrainImages, "give weights in safetensors"});
  refuses(3, {"--output-dir", "other", "--init", "none"}, {"none", "give weights in safetensors"});
  refuses(3, {"--output-dir", "other", "--resume", "none"}, {"'none'"});
  refuses(3, {"--output-dir", "other", "--resume", temp / kTrainImages}, {kTrainImages});

  refuses(2, {"--resume", "run", "--seed", "7"}, {"seed", "42", "7"});
  refuses(2, {"--resume", "run", "--model", "mnist_convnet"}, {"model", "mlp", "mnist_convnet"});
  refuses(2, {"--resume", "run", "--no-shuffle"}, {"no-shuffle off", "this run uses on"});
  refuses(2, {"--resume", "run", "--no-augment"}, {"no-augment off", "this run uses on"});
  refuses(2, {"--resume", "run", "--drop-last"}, {"drop-last off", "this run uses on"});
  refuses(2, {"--output-dir", "run"}, {"'run'", "already contains a run", "--resume auto"});
}

}  // namespace
