// A run that fails before its first step leaves the disk unchanged.
#include <filesystem>
#include <map>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

// Every path below a folder, with the content of files.
std::map<std::string, std::string> content(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    found[entry.path().string()] = entry.is_regular_file() ? read_text(entry.path().string()) : "";
  return found;
}

const std::vector<std::string> kOneReplica{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--cpu", "1"};

void leaves_nothing(const std::string& folder, int code, const std::vector<std::string>& more,
                    const std::vector<std::string>& variables = {}) {
  std::vector<std::string> arguments = kOneReplica;
  arguments.insert(arguments.end(), more.begin(), more.end());
  const auto before = content(folder);
  const Outcome outcome = Program(arguments, folder, variables).wait();
  INFO(more.front() << " " << more.back() << ": " << outcome.err);
  CHECK(outcome.code == code);
  CHECK(content(folder) == before);
}

TEST_CASE("a failed start leaves no folder and no file behind") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  fs::create_directory(temp / "empty");
  fs::create_directory(temp / "mine");
  write_text(temp / "mine/notes", "keep");
  write_text(temp / "weights", "no safetensors");
  for (const char* output : {"", "run", "deep/er/run", "mine", "empty"}) {
    const auto in = [&](std::vector<std::string> more) {
      if (*output != '\0') more.insert(more.begin(), {"--output-dir", output});
      return more;
    };
    leaves_nothing(temp.path(), 3, in({"--init", "weights"}));
    leaves_nothing(temp.path(), 3, in({"--resume", "empty"}));
    leaves_nothing(temp.path(), 2, in({"--drop-last", "-b", "65"}));
  }
  leaves_nothing(temp.path(), 2, {"--nesterov", "--momentum", "0"});
  leaves_nothing(temp.path(), 7, {"--summary", "none/s.json"});
  leaves_nothing(temp.path(), 2, {"--seed", "1"}, {"DP_FAIL=nan:loss"});
  fs::create_directories(temp / "runs");
  leaves_nothing(temp.path(), 3, {"--init", "weights"});
}

TEST_CASE("a failed resume leaves the run folder unchanged") {
  const TemporaryFolder temp;
  write_tiny_mnist(temp.path());
  std::vector<std::string> arguments = kOneReplica;
  arguments.insert(arguments.end(), {"--output-dir", "run"});
  REQUIRE(run_dp_train(arguments, temp.path()).code == 0);
  CHECK_FALSE(fs::exists(temp / "run/.lock"));
  leaves_nothing(temp.path(), 2, {"--output-dir", "run"});
  leaves_nothing(temp.path(), 2, {"--resume", "run", "--seed", "7"});
  leaves_nothing(temp.path(), 2, {"--resume", "run", "--output-dir", "other", "--seed", "7"});
}

}  // namespace
