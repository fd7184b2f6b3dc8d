// Linked into everything that is compiled with -fsanitize-coverage=trace-pc. Marks each block that runs, in the file
// with the name of this program or library in the folder $DP_REACHED. The file is shared memory, so marks survive the
// death of the process. Without the file nothing is marked.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<bool> looked{false};
std::atomic<unsigned char*> marks{nullptr};
std::atomic<std::uintptr_t> base{0}, size{0};

void look() {
  if (looked.exchange(true)) return;
  const char* const folder = std::getenv("DP_REACHED");
  Dl_info self{};
  if (folder == nullptr || ::dladdr(reinterpret_cast<void*>(&look), &self) == 0) return;
  const char* const slash = std::strrchr(self.dli_fname, '/');
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%s", folder, slash == nullptr ? self.dli_fname : slash + 1);
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  struct stat status {};
  if (::fstat(file, &status) == 0) {
    void* const memory =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) {
      base = reinterpret_cast<std::uintptr_t>(self.dli_fbase);
      size = static_cast<std::uintptr_t>(status.st_size);
      marks = static_cast<unsigned char*>(memory);
    }
  }
  ::close(file);
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc() {
  unsigned char* to = marks.load(std::memory_order_acquire);
  if (to == nullptr) {
    if (looked.load(std::memory_order_relaxed)) return;
    look();
    if ((to = marks.load(std::memory_order_acquire)) == nullptr) return;
  }
  const std::uintptr_t at =
      reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) - base.load(std::memory_order_relaxed);
  if (at < size.load(std::memory_order_relaxed)) to[at] = 1;
}
