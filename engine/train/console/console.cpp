// The progress of a run on a terminal (one line, rewritten) or in a log (plain lines).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "engine/train/console/console_text.h"

namespace dp {
namespace {

class Console {
 public:
  explicit Console(const ConsoleOptions& options) : quiet_(options.quiet) {
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    const char* name = std::getenv("TERM");
    const bool dumb = name != nullptr && std::string_view(name) == "dumb";
    const char* no_color = std::getenv("NO_COLOR");
    rewrite_ = terminal && !dumb && options.progress;
    bold_ = terminal && !dumb && (no_color == nullptr || *no_color == '\0');
  }

  void text(const std::string& text) {
    if (quiet_) return;
    finish_line();
    put(text);
  }

  void progress(const std::string& line, bool last) {
    if (quiet_) return;
    put(rewrite_ ? "\r" + line + "\x1b[K" : line + "\n");
    open_line_ = rewrite_;
    if (last) finish_line();
  }

  void result(const std::string& line) { text((bold_ ? "\x1b[1m" + line + "\x1b[0m" : line) + "\n"); }

  void notice(const std::string& message) {
    if (quiet_)
      std::fputs((printable(message) + "\n").c_str(), stderr);
    else
      text(printable(message) + "\n");
  }

 private:
  void finish_line() {
    if (open_line_) put("\n");
    open_line_ = false;
  }

  static void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  bool quiet_, rewrite_ = false, bold_ = false;
  bool open_line_ = false;
};

}  // namespace

TrainerCallbacks console_callbacks(const ConsoleOptions& options) {
  const auto console = std::make_shared<Console>(options);
  TrainerCallbacks callbacks;
  callbacks.on_start = [console](const DataParallel& net, const TrainerOptions& chosen) {
    console->text(start_table(net, chosen));
  };
  callbacks.on_step = [console](const StepReport& report) {
    console->progress(step_line(report), report.batch + 1 == report.batches);
  };
  callbacks.on_eval = [console](const EvalReport& report) {
    console->result((report.average ? "EMA   " : "") + eval_line(report.stats));
  };
  callbacks.on_message = [console](const std::string& message) { console->notice(message); };
  return callbacks;
}

void print_summary(const RunSummary& summary) {
  std::fputs(summary_text(summary).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace dp
