// The console in a real terminal emulator: tmux interprets what dp_train prints, and shows its screen.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/patience.h"
#include "support/temporary_folder.h"

namespace {

using namespace dp::test;

class Tmux {
 public:
  // Starts dp_train with these arguments, and environment variables ("NAME=value"), in a terminal of 80x24.
  Tmux(const std::string& folder, const std::string& arguments, const std::string& variables) : folder_(folder) {
    call(
        "-f /dev/null start-server \\; set -g remain-on-exit on \\; set -g status off \\; new-session -d -x 80 -y 24 "
        "\"exec env " +
        variables + " '" DP_TRAIN_PATH "' " + arguments + "\"");
  }
  ~Tmux() { call("kill-server"); }
  Tmux(const Tmux&) = delete;
  Tmux& operator=(const Tmux&) = delete;

  std::string call(const std::string& command) const {
    return Program({}, folder_, {}, {"/bin/sh", "-c", "exec tmux -S socket " + command}).wait().out;
  }
  // The screen's lines, once `shows` holds. `history`: also the lines above the screen.
  std::vector<std::string> screen(const std::function<bool(const std::vector<std::string>&)>& shows,
                                  bool history = false) const {
    std::vector<std::string> lines;
    for (const auto begin = std::chrono::steady_clock::now(); in_time(begin, 120);) {
      lines.clear();
      std::istringstream text(call(std::string("capture-pane -p") + (history ? " -S -" : "")));
      for (std::string line; std::getline(text, line);)
        if (!line.empty()) lines.push_back(line);
      if (!lines.empty() && shows(lines)) return lines;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    FAIL("the screen shows only " << Catch::Detail::stringify(lines));
    return lines;
  }

 private:
  std::string folder_;
};

bool has(const std::string& line, const char* text) { return line.find(text) != std::string::npos; }

TEST_CASE("in tmux the progress line is one line at 80x24 and at 50x20, and an interrupt has lines of its own",
          "[processes]") {
  if (!std::filesystem::exists("/usr/bin/tmux")) DP_SKIP("tmux is not installed");
  const TemporaryFolder temp;
  const StallGate gate(temp / "gate");
  const Tmux tmux(temp.path(), "--dataset synthetic --model mlp --cpu 1 -b 16 -p 1 --max-steps 900 --output-dir run",
                  "DP_FAIL=stall:forward:dev0:step10:600000ms,stall:forward:dev0:step11:600000ms " + gate.variable());
  const auto progress_lines = [](const std::vector<std::string>& lines) {
    return std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("Epoch"); });
  };
  // The last line before the stall. A line that is written while the terminal changes its size may stay on the screen,
  // so nothing may be written then.
  const std::vector<std::string> wide =
      tmux.screen([&](const std::vector<std::string>& lines) { return has(lines.back(), "Epoch 0 [  9/"); });
  INFO(wide.back());
  // Not the share of the floor: it has more digits where rates were measured on a busy machine, and is dropped then.
  for (const char* const column : {" left  ", " img/s  ", "loss ", "acc1 "}) CHECK(has(wide.back(), column));
  CHECK(progress_lines(wide) == 1);
  CHECK(wide.back().size() < 80);
  for (const std::string& line : wide) CHECK(!has(line, "Planning"));

  tmux.call("resize-window -x 50 -y 20");
  gate.wait_for();
  gate.end_one();
  const std::vector<std::string> narrow =
      tmux.screen([&](const std::vector<std::string>& lines) { return has(lines.back(), "Epoch 0 [ 10/"); });
  CHECK(progress_lines(narrow) == 1);  // the wide line, now in two rows, is gone
  CHECK(!has(narrow.back(), " left"));
  CHECK(has(narrow.back(), "loss "));
  CHECK(narrow.back().size() < 50);
  CHECK(narrow.size() <= 20);

  tmux.call("send-keys C-c");
  tmux.screen([&](const std::vector<std::string>& lines) {
    return std::any_of(lines.begin(), lines.end(), [](const auto& line) { return has(line, "stopping after a"); });
  });
  gate.open();
  const auto has_ended = [](const std::vector<std::string>& lines) {
    return std::any_of(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("Interrupted"); });
  };
  const std::vector<std::string> ended = tmux.screen(has_ended, /*history=*/true);
  const auto begins = [&](const char* text) {
    return std::count_if(ended.begin(), ended.end(), [&](const auto& line) { return line.starts_with(text); });
  };
  CHECK(begins("dp_train: stopping after a checkpoint is written") == 1);
  CHECK(begins("Interrupted") == 1);
  CHECK(begins("seconds     replica 0") == 1);
  CHECK(begins("forward ") == 1);
}

}  // namespace
