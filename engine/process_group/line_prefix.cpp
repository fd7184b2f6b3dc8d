#include "engine/process_group/line_prefix.h"

#include <unistd.h>

#include <cerrno>

namespace dp::process_group {

void write_line(int to, const std::string& text) {
  const std::string line = text + "\n";
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t count = ::write(to, line.data() + sent, line.size() - sent);
    if (count < 0 && errno != EINTR) return;  // the reader is gone
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
}

bool LinePrefix::pass_on(int from) {
  char block[4096];
  ssize_t count = 0;
  while ((count = ::read(from, block, sizeof block)) > 0) {
    line_.append(block, static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = line_.find('\n')) != std::string::npos; line_.erase(0, end + 1))
      write_line(to_, prefix_ + line_.substr(0, end));
  }
  return count < 0 && (errno == EAGAIN || errno == EINTR);
}

void LinePrefix::finish() {
  if (!line_.empty()) write_line(to_, prefix_ + line_);
  line_.clear();
}

}  // namespace dp::process_group
