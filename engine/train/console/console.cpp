// The progress of a run on a terminal (one line, rewritten) or in a log (plain lines).
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/train/console/console_text.h"

namespace dp {
namespace {

// Columns of stdout's terminal now, which can be resized; 0: not a terminal.
Width terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

class Console {
 public:
  explicit Console(const ConsoleOptions& options) : quiet_(options.quiet) {
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    const char* name = std::getenv("TERM");
    const bool dumb = name != nullptr && std::string_view(name) == "dumb";
    const char* no_color = std::getenv("NO_COLOR");
    rewrite_ = terminal && !dumb && options.progress;
    colours_ = terminal && !dumb && (no_color == nullptr || *no_color == '\0');
  }
  ~Console() { finish_line(); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // The progress line of a terminal shows how close the steps are to their floor.
  void start(const DataParallel& net, std::int64_t batch) {
    if (!quiet_ && rewrite_) floor_per_image_ = net.step_floor(batch) / static_cast<double>(batch);
  }

  void step(const StepReport& report) {
    const double floor_share = report.images_per_second * floor_per_image_;
    progress(step_line(report, floor_share, width()), report.batch + 1 == report.batches);
  }

  void text(const std::string& text) {
    if (quiet_) return;
    finish_line();
    put(text);
  }

  Width width() const { return rewrite_ ? terminal_width() : 0; }

  void progress(const std::string& line, bool last) {
    if (quiet_) return;
    put(rewrite_ ? over_open_line(line) : line + "\n");
    open_line_ = progress_is_open_ = rewrite_;
    if (last) finish_line();
  }

  // On a terminal only, at most ten times a second. The last line is erased.
  void work(const WorkReport& report) {
    if (quiet_ || !rewrite_) return;
    const auto now = std::chrono::steady_clock::now();
    const bool ends = report.total > 0 && report.done == report.total;
    if (!ends && report.done > 0 && now - worked_ < std::chrono::milliseconds(100)) return;
    worked_ = now;
    if (progress_is_open_) finish_line();
    put(over_open_line(ends ? "" : work_line(report, width())));
    open_line_ = !ends;
  }

  void result(const std::string& line) { text(coloured(kBold, wrapped(line, width())) + "\n"); }

  void notice(const std::string& message) {
    if (quiet_)
      std::fputs((printable(message) + "\n").c_str(), stderr);
    else
      text(coloured(kYellow, wrapped(printable(message), width())) + "\n");
  }

 private:
  static constexpr const char *kBold = "\x1b[1m", *kYellow = "\x1b[33m";

  std::string coloured(const char* colour, const std::string& text) const {
    return colours_ ? colour + text + "\x1b[0m" : text;
  }

  // Ends an open progress line, and erases an open line about other work.
  void finish_line() {
    if (open_line_) put(progress_is_open_ ? "\n\x1b[J" : over_open_line(""));
    open_line_ = progress_is_open_ = false;
  }

  // Replaces the open line. The cursor returns to its beginning: a terminal that has become narrower shows the line in
  // several rows, and keeps the cursor in the first one.
  static std::string over_open_line(const std::string& line) { return "\r" + line + "\x1b[J\r"; }

  static void put(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  bool quiet_, rewrite_ = false, colours_ = false;
  bool open_line_ = false, progress_is_open_ = false;
  double floor_per_image_ = 0;  // seconds; 0: unknown
  std::chrono::steady_clock::time_point worked_{};
};

}  // namespace

TrainerCallbacks console_callbacks(const ConsoleOptions& options) {
  const auto console = std::make_shared<Console>(options);
  TrainerCallbacks callbacks;
  const auto classes = std::make_shared<std::int64_t>(0);
  callbacks.on_start = [console, classes](const DataParallel& net, const TrainerOptions& chosen) {
    *classes = net.model().output()[0];
    console->text(wrapped(start_table(net, chosen), console->width()));
    console->start(net, chosen.batch_size);
  };
  callbacks.on_step = [console](const StepReport& report) { console->step(report); };
  callbacks.on_work = [console](const WorkReport& report) { console->work(report); };
  callbacks.on_eval = [console, classes](const EvalReport& report) {
    if (report.alone) console->result(eval_line(report.stats, *classes));
  };
  callbacks.on_epoch = [console, classes](const EpochReport& report) {
    console->result(epoch_line(report, *classes, console->width()));
  };
  callbacks.on_message = [console](const std::string& message) { console->notice(message); };
  return callbacks;
}

void print_summary(const RunSummary& summary, const std::string& devices) {
  const Width width = terminal_width();
  std::fputs(wrapped(summary_text(summary, devices, width), width).c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace dp
