#include "simulated_cuda/runtime/source_line.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>

namespace dp::simt {

std::string source_line(const void* code) {
  static std::map<const void*, std::string> known;
  if (code == nullptr) return {};
  if (const auto at = known.find(code); at != known.end()) return at->second;
  Dl_info image{};
  if (dladdr(code, &image) == 0 || image.dli_fname == nullptr) return {};
  // The address is the return address. One byte before is inside the call.
  const auto offset = reinterpret_cast<std::uintptr_t>(code) - reinterpret_cast<std::uintptr_t>(image.dli_fbase) - 1;
  char command[PATH_MAX + 64];
  char program[PATH_MAX] = "";
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return {};
  const char* const file = image.dli_fname[0] == '/' ? image.dli_fname : program;
  std::snprintf(command, sizeof command, "addr2line -s -e '%s' 0x%zx 2>/dev/null", file,
                static_cast<std::size_t>(offset));
  char line[256] = "";
  if (FILE* const out = popen(command, "r")) {
    if (std::fgets(line, sizeof line, out) == nullptr) line[0] = 0;
    pclose(out);
  }
  std::string text(line);
  text = text.substr(0, text.find_first_of("\n ("));
  if (text.empty() || text[0] == '?') return known[code] = "";
  return known[code] = " (" + text + ")";
}

}  // namespace dp::simt
