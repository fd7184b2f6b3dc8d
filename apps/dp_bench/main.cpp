// dp_bench: how fast it is, beside what it could be and what others are.
#include <dp/dp.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "child.h"
#include "commit.h"
#include "flags.h"
#include "programs.h"

namespace dp_bench {
namespace {

void write(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush())
    throw dp::Error(dp::ErrorCode::io,
                    "can not write " + path + ": " + std::strerror(errno) + "; name a file in a folder with room");
}

// Before hours of measuring, not after them.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  if (!std::ofstream(path, std::ios::binary | std::ios::app))
    throw dp::Error(dp::ErrorCode::io,
                    "can not write " + path + ": " + std::strerror(errno) + "; name a file in a folder that is there");
}

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
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
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
  if (!asked) return 0;
  check_writable(asked->output.json);
  check_writable(asked->output.html);
  check_writable(asked->output.markdown);
  Report report = asked->work();
  report.facts.insert(
      report.facts.begin(),
      {{"command", command_line(argc, argv)},
       {"date", today()},
       {"dp", std::string(DP_VERSION) + ", commit " + kCommit},
       {"processor", processor() + ", " + std::to_string(dp::process_cores().size()) + " cores to this process"}});
  std::fputs(to_text(report).c_str(), stdout);
  write(asked->output.json, to_json(report));
  write(asked->output.html, to_html(report));
  write(asked->output.markdown, to_markdown(report));
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
  return dp_bench::guarded(argc, argv);
}
