// Event files: bytes of known events, and reading by TensorBoard's own reader.
#include "engine/train/record/event_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/catch.h"
#include "support/temporary_folder.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::read_text;
using dp::test::run_until;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
namespace fs = std::filesystem;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

TEST_CASE("events have the bytes that TensorBoard's own writer gives") {
  CHECK(hex(scalar_event(1700000000.5, 7, {{"Train/loss", 0.25}})) ==
        "0900002040fc54d94110072a130a110a0a547261696e2f6c6f7373150000803e");
  const std::string first = std::string("\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d", 11) + "brain.Event:2";
  CHECK(hex(event_frame(first)) == "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
}

TEST_CASE("the numbers of a record become scalars with the names of its kind") {
  using Record = nlohmann::ordered_json;
  CHECK(
      scalars_of(Record{{"kind", "train"}, {"step", 3}, {"loss", 0.5}, {"top1", 50.0}, {"phases", Record::array()}}) ==
      Scalars{{"Train/loss", 0.5}, {"Train/acc1", 50}});
  CHECK(scalars_of(Record{{"kind", "eval"}, {"loss", 2.0}, {"average", false}}) == Scalars{{"Test/loss", 2}});
  CHECK(scalars_of(Record{{"kind", "eval"}, {"loss", 2.0}, {"average", true}}) == Scalars{{"Test EMA/loss", 2}});
  CHECK(scalars_of(Record{{"kind", "resumed"}, {"loss", 2.0}}).empty());
  CHECK(scalars_of(Record{{"kind", "train"}, {"loss", nullptr}}).empty());
}

TEST_CASE("a resumed run writes a new event file, which names the step from which it continues") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  run_until(options, 10);
  REQUIRE(event_files(temp.path()).size() == 1);
  const std::string first = read_text(event_files(temp.path()).front());
  options.resume = "auto";
  tiny_run(options);
  const std::vector<std::string> files = event_files(temp.path());
  REQUIRE(files.size() == 2);
  CHECK(read_text(files[0]) == first);
  // step = 11, session_log { status: START }
  CHECK_THAT(read_text(files[1]), Catch::Contains(std::string("\x10\x0b\x3a\x02\x08\x01")));
  CHECK_THAT(first, !Catch::Contains(std::string("\x3a\x02\x08\x01")));
}

// Exit status 4: this Python has no TensorBoard.
int read_by_tensorboard(const std::string& folder, const std::string& out) {
  const std::string python = DP_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) return 4;
  const std::string command =
      "'" + python + "' -B '" DP_SOURCE "/tests/train/record/read_events.py' '" + folder + "' > '" + out + "'";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("TensorBoard reads a run's metrics and options, also after a kill in the middle of a write") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp / "run");
  options.parallel.clip_grad_norm = 1;
  run_until(options, 10);
  const std::string file = event_files(temp / "run").front();
  std::ofstream(file, std::ios::binary | std::ios::app) << read_text(file).substr(0, 17);  // half a record
  options.resume = "auto";
  tiny_run(options);
  const int code = read_by_tensorboard(temp / "run", temp / "out.json");
  if (code == 4) DP_SKIP("Python has no TensorBoard");
  REQUIRE(code == 0);
  const auto read = nlohmann::json::parse(read_text(temp / "out.json"));
  std::ifstream metrics(temp / "run/metrics.jsonl");
  std::size_t trained = 0, evaluated = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record["kind"] == "resumed") continue;
    INFO(line);
    const bool train = record["kind"] == "train";
    const std::string part = train ? "Train/" : "Test/";
    const auto& one = read["scalars"][part + "loss"][train ? trained++ : evaluated++];
    CHECK(one[0] == record["step"]);
    CHECK(one[1].get<double>() == Approx(record["loss"].get<double>()));
  }
  CHECK(trained == 21);
  CHECK(evaluated == 3);
  for (const char* tag :
       {"Train/loss", "Train/lr", "Train/images_per_second", "Train/loading_share", "Train/grad_norm"})
    CHECK(read["scalars"][tag].size() == trained);
  CHECK(read["scalars"].contains("Memory/replica 1 (MiB)"));
  CHECK(read["options"]["lr"] == Approx(0.05));
  CHECK(read["options"]["dataset"] == "digits");
}

}  // namespace
