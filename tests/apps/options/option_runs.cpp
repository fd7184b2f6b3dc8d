#include "apps/options/option_runs.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "apps/idx_files.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

extern char** environ;

namespace dp::test {
namespace {

namespace fs = std::filesystem;

// Files of CIFAR-10's size for cropped and flipped images. Only the first records are non-zero.
void write_cifar(const std::string& folder) {
  fs::create_directory(folder);
  std::string records;
  for (int i = 0; i < 32 * 3073; ++i) records += static_cast<char>(i % 3073 == 0 ? i / 3073 % 10 : i * 31 + i / 512);
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"}) {
    write_text(folder + "/" + name, records);
    fs::resize_file(folder + "/" + name, std::uintmax_t{10000} * 3073);
  }
}

// The folder for "@" in the rows.
class Data {
 public:
  Data() {
    for (const char* name : {"digits", "others", "out"}) fs::create_directory(temp_ / name);
    write_tiny_mnist(temp_ / "digits");
    write_tiny_mnist(temp_ / "others");
    std::string images = idx_images(64);
    std::reverse(images.begin() + 16, images.end());
    write_text(temp_ / ("others/" + std::string(kTrainImages)), images);
  }
  std::string path() const { return temp_.path(); }

  std::string resolved(std::string word) {
    const auto at = word.find("@/");
    if (at == std::string::npos) return word;
    if (word.find("@/crops") == at && !std::exchange(crops_, true)) write_cifar(temp_ / "crops");
    if (word.find("@/targets") == at && !std::exchange(targets_, true)) write_targets(temp_ / "targets");
    if (word.find("@/seven") == at && !std::exchange(seven_, true)) {
      const Words words{"--seed", "7", "--output-dir", "@/seven"};
      REQUIRE(run_dp_train(resolved(merged(setting_words(Setting::mlp), words)), temp_.path()).code == 0);
    }
    return word.replace(at, 1, temp_.path());
  }
  Words resolved(Words words) {
    for (std::string& word : words) word = resolved(word);
    return words;
  }

 private:
  const TemporaryFolder temp_;
  bool crops_ = false, seven_ = false, targets_ = false;
};

Data& data() {
  static Data made;
  return made;
}

std::set<std::string> set_of_lines(const std::string& text) {
  std::set<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

// Lines of config.toml before [data]. Those of the table [resolved] begin with "resolved: ".
std::set<std::string> config_lines(const std::string& whole) {
  const std::string text = whole.substr(0, whole.find("\n[data]\n"));
  const std::size_t table = text.find("\n[resolved]\n");
  std::set<std::string> lines = set_of_lines(text.substr(0, table));
  std::erase_if(lines, [](const std::string& line) { return line.starts_with('#'); });
  if (table != std::string::npos)
    for (const std::string& line : set_of_lines(text.substr(table + 12))) lines.insert("resolved: " + line);
  return lines;
}

std::string key_of(const std::string& line) { return line.substr(0, line.find(" = ")); }

Ran run(const Words& given, const Words& variables) {
  static int number = 0;
  const Words words = data().resolved(merged({"--output-dir", "@/run" + std::to_string(number++)}, given));
  Ran ran;
  ran.outcome = Program(words, data().path(), variables).wait();
  ran.folder = words.at(1);
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(words.at(1), none))
    if (entry.path().filename() == "config.toml") ran.folder = entry.path().parent_path().string();
  if (ran.has("config.toml")) ran.config = config_lines(ran.text("config.toml"));
  if (ran.has("summary.json")) ran.summary = nlohmann::json::parse(ran.text("summary.json"));
  if (ran.has("metrics.jsonl"))
    for (const std::string& line : set_of_lines(ran.text("metrics.jsonl")))
      ran.metrics.push_back(nlohmann::json::parse(line));
  return ran;
}

// Cached: many rows share a base run.
const Ran& base_of(const Words& words, const Words& variables) {
  static std::map<std::pair<Words, Words>, Ran> known;
  const auto [place, fresh] = known.try_emplace({words, variables});
  if (fresh) place->second = run(words, variables);
  return place->second;
}

void check_config(const Ran& base, const Ran& ran, const Words& expected) {
  std::set<std::string> keys, added, wanted;
  for (const std::string& line : expected) {
    const bool removed = line.front() == '-';
    keys.insert(removed ? line.substr(1) : key_of(line));
    if (!removed) wanted.insert(data().resolved(line));
    for (const std::string& own : ran.config)
      if (removed) CHECK(key_of(own) != line.substr(1));
  }
  std::set_difference(ran.config.begin(), ran.config.end(), base.config.begin(), base.config.end(),
                      std::inserter(added, added.end()));
  const bool comparable = !base.config.empty();  // the base run may have failed before it wrote one
  INFO("changed: " << Catch::Detail::stringify(added));
  CHECK((comparable ? added == wanted : std::includes(added.begin(), added.end(), wanted.begin(), wanted.end())));
  for (const std::string& line : base.config)
    if (!ran.config.contains(line)) CHECK(keys.contains(key_of(line)));
}

}  // namespace

bool Ran::has(const std::string& file) const { return fs::exists(folder + "/" + file); }
std::string Ran::text(const std::string& file) const { return read_text(folder + "/" + file); }
std::int64_t Ran::lines(const std::string& kind) const {
  return std::count_if(metrics.begin(), metrics.end(), [&](const auto& line) { return line["kind"] == kind; });
}

void write_targets(const std::string& folder) {
  fs::create_directory(folder);
  std::string list = "path,one,two,sample_weight\n";
  for (int i = 0; i < 8; ++i) {
    std::ifstream image(std::string(DP_IMAGE_CORPUS "/") + (i % 2 == 0 ? "jpeg_420" : "jpeg_422"), std::ios::binary);
    const std::string name = std::to_string(i) + ".jpg";
    write_text(folder + "/" + name, {std::istreambuf_iterator<char>(image), {}});
    list += name + "," + std::to_string(i % 2) + "," + std::to_string(i / 4) + "," + std::to_string(i % 3) + "\n";
  }
  for (const char* part : {"/train.csv", "/val.csv"}) write_text(folder + part, list);
}

Words setting_words(Setting setting) {
  const auto on = [](const Words& words) {
    return words + Words{"--cpu", "2", "--threads-per-replica", "1", "-j", "1"};
  };
  const Words synthetic{"--dataset", "synthetic", "--input"};
  switch (setting) {
    case Setting::mlp:
      return on({"--dataset", "mnist", "--data-path", "@/digits", "--model", "mlp", "-b", "16", "--epochs", "2"});
    case Setting::convnet:
      return on({"--dataset", "mnist", "--data-path", "@/digits", "--model", "mnist_convnet", "-b", "16", "--max-steps",
                 "2"});
    case Setting::batch_norm:
      return on(synthetic + Words{"3,8,8", "--classes", "4", "--images", "12", "--model", "shufflenet_v2_x1_0", "-b",
                                  "8", "--max-steps", "1", "--lr", "0.001"});
    case Setting::synthetic:
      return on(synthetic + Words{"1,6,6", "--classes", "10", "--images", "40", "--model", "mlp", "-b", "16"});
    case Setting::targets:
      return on({"--dataset", "imagetargets", "--data-path", "@/targets", "--output-loss", "huber", "--model", "mlp",
                 "--image-size", "8", "-b", "4", "--epochs", "1", "--lr", "0.01"});
    case Setting::crops: break;
  }
  return on({"--dataset", "cifar10", "--data-path", "@/crops", "--model", "mlp", "-b", "16", "--max-steps", "1",
             "--no-shuffle"});
}

Words merged(Words words, const Words& more) {
  for (std::size_t i = 0; i < more.size(); ++i) {
    const bool takes_value = i + 1 < more.size() && !more[i + 1].starts_with("-");
    const bool of_a_replica = more[i] == "--batch-size-per-gpu";  // replaces -b
    const auto there = std::find(words.begin(), words.end(), of_a_replica ? "-b" : more[i]);
    if (there == words.end()) {
      words.push_back(more[i]);
      if (takes_value) words.push_back(more[i + 1]);
    } else if (takes_value) {
      *there = more[i];
      *(there + 1) = more[i + 1];
    }
    i += takes_value;
  }
  return words;
}

void check_rows(const std::vector<OptionRow>& rows) {
  for (const OptionRow& row : rows) {
    const Words also = merged(setting_words(row.setting), row.also);
    const Ran& base = base_of(also, row.variables);
    const Ran ran = run(merged(also, row.arguments), row.variables);
    INFO(row.option << "; without it: " << base.outcome.err << "with it: " << ran.outcome.err);
    CHECK(base.outcome.code == row.base_code);
    CHECK(ran.outcome.code == row.code);
    check_config(base, ran, row.config);
    CHECK((ran.weights() == base.weights()) == (row.weights == Weights::same));
    if (row.check) row.check(base, ran);
  }
}

void check_alone(const AloneRow& row) {
  const Outcome outcome = Program(data().resolved(row.arguments), data().path(), row.variables).wait();
  INFO(row.option << ": " << outcome.out << outcome.err);
  CHECK(outcome.code == row.code);
  for (const std::string& fragment : row.fragments) CHECK_THAT(outcome.out + outcome.err, Catch::Contains(fragment));
  CHECK_FALSE(fs::exists(data().path() + "/runs"));
}

std::string printed_on_a_terminal(const Words& arguments, const std::vector<Resize>& sizes, const std::string& stall) {
  const TemporaryFolder temp;
  const StallGate gate(temp / "gate");
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  auto size = sizes.begin();
  const auto resize = [&](const std::string& printed) {
    for (; size != sizes.end() && printed.find(size->once) != std::string::npos; ++size) {
      winsize columns{};
      columns.ws_row = 24, columns.ws_col = size->columns;
      REQUIRE(::ioctl(terminal, TIOCSWINSZ, &columns) == 0);
    }
    if (size == sizes.end()) gate.open();
  };
  resize("");
  Words words = data().resolved(Words{DP_TRAIN_PATH} + merged(setting_words(Setting::mlp), arguments));
  ::setenv("TERM", "xterm", 1);
  const std::string fail = "DP_FAIL=stall:" + stall + ":600000ms";
  if (!stall.empty()) words = Words{"env", fail, gate.variable()} + words;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, ::ptsname(terminal), O_WRONLY | O_NOCTTY, 0);
  pid_t id = -1;
  REQUIRE(::posix_spawnp(&id, words.front().c_str(), &actions, nullptr, pointers.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  std::string printed;
  char buffer[4096];
  for (ssize_t got; (got = ::read(terminal, buffer, sizeof buffer)) > 0;)  // EIO: the program has ended
    printed.append(buffer, static_cast<std::size_t>(got)), resize(printed);
  int status = 0;
  ::waitpid(id, &status, 0);
  ::close(terminal);
  CHECK(status == 0);
  return printed;
}

}  // namespace dp::test
