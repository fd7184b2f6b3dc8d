// A headless browser.
#pragma once

#include <string>

#include "bench/run_bench.h"
#include "support/catch.h"

namespace dp::test {

// The program; empty if none is installed.
inline std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    const BenchOutcome found = run_shell(std::string("command -v ") + name);
    if (found.code == 0) return found.text.substr(0, found.text.find('\n'));
  }
  return "";
}

// The page as the browser has drawn it, and the browser's messages. Its profile is beside the page. The limit ends a
// browser that hangs; beside other work a start has taken more than a minute.
inline BenchOutcome show(const std::string& program, const std::string& page, bool dark = false) {
  BenchOutcome shown = run_shell(
      "timeout 240 " + program +
      " --headless --no-sandbox --disable-gpu --enable-logging=stderr --blink-settings=preferredColorScheme=" +
      (dark ? "0" : "1") + " --user-data-dir=" + page + ".profile --window-size=1400,1000" +
      " --virtual-time-budget=3000 --dump-dom file://" + page);
  CHECK(shown.text.find(":CONSOLE") == std::string::npos);  // no error of a script
  return shown;
}

}  // namespace dp::test
