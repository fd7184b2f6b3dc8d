// docs/guide/from_pytorch.md: every row of its tables is tried.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <sstream>

#include "apps/run_program.h"
#include "dp/dp.h"
#include "support/catch.h"
#include "support/free_port.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;
namespace fs = std::filesystem;

// The texts between backticks.
Words codes_of(const std::string& cell) {
  Words codes;
  for (std::size_t at = 0; (at = cell.find('`', at)) != std::string::npos;) {
    const std::size_t end = cell.find('`', at + 1);
    codes.push_back(cell.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return codes;
}

struct Row {
  Words arguments;
  bool none;
  Words here;
};

// Rows of the form "| `argument`, ... | none or `code` ... | text |" below the heading.
std::vector<Row> rows_below(const std::string& heading) {
  std::vector<Row> rows;
  bool below = false;
  for (const std::string& line : lines_of(read_text(DP_SOURCE "/docs/guide/from_pytorch.md"))) {
    if (line.starts_with("## ")) below = line == "## " + heading;
    if (!below || !line.starts_with("| `")) continue;
    const std::size_t second = line.find(" | ") + 3, third = line.find(" |", second);
    REQUIRE(third != std::string::npos);
    const std::string here = line.substr(second, third - second);
    rows.push_back({codes_of(line.substr(0, second)), here == "none", codes_of(here)});
  }
  return rows;
}

// A small run, without what `more` gives instead.
Words with_small_run(const Words& more) {
  std::vector<Words> base{{"--dataset", "imagefolder"}, {"--data-path", "images"}, {"--image-size", "32"},
                          {"--model", "mlp"},           {"--batch-size", "4"},     {"--cpu", "1"}};
  const std::multimap<std::string, std::string> replaced{
      {"--data-dir", "--data-path"},     {"--img-size", "--image-size"},   {"--gpus", "--cpu"},
      {"--num-classes", "--image-size"}, {"--num-classes", "--data-path"}, {"--batch-size-per-gpu", "--batch-size"}};
  Words words;
  for (const Words& option : base) {
    const bool given = std::any_of(more.begin(), more.end(), [&](const std::string& word) {
      const auto [first, last] = replaced.equal_range(word);
      return word == option[0] || std::any_of(first, last, [&](const auto& pair) { return pair.second == option[0]; });
    });
    if (!given) words = words + option;
  }
  return words + more;
}

Words words_of(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

void write_images(const TemporaryFolder& temp) {
  for (const char* part : {"train", "val"})
    for (const char* kind : {"daisy", "rose"})
      for (const char* name : {"1.png", "2.png", "3.png", "4.png"}) {
        const fs::path file = fs::path(temp / "images") / part / kind / name;
        fs::create_directories(file.parent_path());
        fs::copy_file(DP_IMAGE_CORPUS "/png_rgb", file);
      }
}

// What the page writes and what runs are the same text.
#define TRIED(...)                                                                                                     \
  {                                                                                                                    \
#__VA_ARGS__, [](const dp::Model& model, const Group& group) { (void)model, (void)group, [&] { __VA_ARGS__; }(); } \
  }

using Group = std::shared_ptr<dp::ProcessGroup>;
const std::map<std::string, std::function<void(const dp::Model&, const Group&)>> kCode{
    TRIED(dp::DataParallel net(model, {.devices = dp::cpus(1)})),
    TRIED(dp::DataParallel net(model, {.devices = dp::cpus(2)})),
    TRIED(dp::DataParallel net(model, {.devices = dp::gpus({0, 1})})),
    TRIED(dp::DataParallelOptions options{.process_group = group}),
};

void try_code(const std::string& code, const Group& group) {
  INFO(code);
  CHECK(kCode.contains(code));
  if (!kCode.contains(code)) return;
  try {
    kCode.at(code)(dp::models::mlp(), group);
  } catch (const dp::Error& error) {  // without GPUs
    CHECK(code.find("dp::gpus") != std::string::npos);
    CHECK(error.code() == dp::ErrorCode::device);
  }
}

void try_options(const std::vector<Row>& rows) {
  const TemporaryFolder temp;
  write_images(temp);
  REQUIRE(run_dp_train(with_small_run({"--epochs", "1", "--output-dir", "run"}), temp.path()).code == 0);
  fs::copy_file(temp / "run/checkpoints/last/model.safetensors", temp / "weights.safetensors");
  const Words dry{"--dry-run", "--quiet"};
  for (const Row& row : rows) {
    CHECK(row.none == row.here.empty());
    for (const std::string& argument : row.none ? row.arguments : Words{}) {
      if (!argument.starts_with("-")) continue;  // an argument of Python
      const Outcome outcome = run_dp_train(with_small_run(words_of(argument)) + dry, temp.path());
      INFO(argument << ": " << outcome.err);
      CHECK(outcome.code == 2);
      CHECK(outcome.err.starts_with("dp_train: error: -"));
    }
    for (const std::string& code : row.here) {
      if (code.starts_with("dp::")) continue;
      Words words = words_of(code);
      if (words.front() == "dp_train")
        words = Words{words.begin() + 1, words.end()} + Words{"--help"};
      else
        words = with_small_run(words) + dry;
      const Outcome outcome = Program(words, temp.path(), {"DP_EMULATE_BF16=1"}).wait();
      INFO(code << ": " << outcome.err);
      const bool without_gpu = code == "--gpus all" && outcome.err.find("no usable GPU") != std::string::npos;
      CHECK((outcome.code == 0 || without_gpu));
    }
  }
}

TEST_CASE("From PyTorch: what stands for DataParallel and DistributedDataParallel compiles and runs") {
  const std::vector<Row> wrapper = rows_below("nn.DataParallel"), ddp = rows_below("DistributedDataParallel");
  CHECK(wrapper.size() == 4);
  CHECK(ddp.size() == 21);
  ::setenv("RANK", "0", 1);
  ::setenv("WORLD_SIZE", "1", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", free_port().c_str(), 1);
  {
    const Group group = dp::ProcessGroup::join(*dp::process_group_from_environment());
    for (const std::vector<Row>* rows : {&wrapper, &ddp})
      for (const Row& row : *rows)
        for (const std::string& code : row.here)
          if (code.starts_with("dp::")) try_code(code, group);
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
  try_options(wrapper);
  try_options(ddp);
}

TEST_CASE(
    "From PyTorch: dp_train accepts what stands for an argument of torchvision's script, and refuses the others") {
  const std::vector<Row> rows = rows_below("torchvision's train.py");
  CHECK(rows.size() >= 55);
  try_options(rows);
}

TEST_CASE("From PyTorch: dp_train accepts what stands for an argument of timm's script, and refuses the others") {
  const std::vector<Row> rows = rows_below("timm's train.py");
  CHECK(rows.size() >= 110);
  try_options(rows);
}

}  // namespace
