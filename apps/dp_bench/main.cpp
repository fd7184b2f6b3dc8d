// dp_bench: measures dp and compares it with lower bounds and PyTorch.
#include <dp/dp.h>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <sstream>

#include "child.h"
#include "command_line/commit.h"
#include "flags.h"
#include "report/report.h"

namespace dp_bench {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string command_line(int argc, const char* const* argv) {
  std::string line = "dp_bench";
  for (int i = 1; i < argc; ++i) line += " " + dp::shell_argument(dp::printable(argv[i]));
  return line;
}

int fail(int code, const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "dp_bench: error: %s\n", dp::printable(what).c_str());
  return code;
}

int guarded(int argc, const char* const* argv) try {
  point_to_plugins();
  const auto asked = parse_arguments(argc, argv);
  if (!asked) {
    dp::flush_stdout();
    return 0;
  }
  OutputFile json(asked->output.json), html(asked->output.html), markdown(asked->output.markdown);
  Report report = asked->work();
  report.facts.insert(report.facts.begin(), {{"command", command_line(argc, argv)},
                                             {"date", today()},
                                             {"dp", std::string(DP_VERSION) + ", commit " + ::command_line::kCommit},
                                             {"processor", processor() + ", " + to_string(dp::available_cores())}});
  std::fputs(to_text(report).c_str(), stdout);
  json.write(to_json(report));
  html.write(to_html(report));
  markdown.write(to_markdown(report));
  dp::flush_stdout();
  return 0;
} catch (const dp::Error& error) {
  return fail(static_cast<int>(error.code()), error.what());
} catch (const ChildError& error) {
  return fail(static_cast<int>(dp::ErrorCode::device), error.what());
} catch (const std::exception& error) {
  return fail(1, std::string("unexpected: ") + error.what());
}

}  // namespace
}  // namespace dp_bench

int main(int argc, char** argv) {
  dp::open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file-size limit then fails with EFBIG
  return dp_bench::guarded(argc, argv);
}
