// Preloaded into a program. Blocks the call that DP_STANDS_AT names, for example "open:train-images" with a part of
// the path or name. The blocked call creates the file DP_STANDS_FILE and goes on once the file <DP_STANDS_FILE>.open
// exists. If a test never creates that, the process ends after ten minutes.
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace {

void stand_in(std::string_view call, const char* argument) {
  const char* const wanted = ::getenv("DP_STANDS_AT");
  const std::string_view at = wanted == nullptr ? "" : wanted;
  const auto colon = at.find(':');
  if (colon == at.npos || at.substr(0, colon) != call) return;
  if (argument == nullptr || std::string_view(argument).find(at.substr(colon + 1)) == std::string_view::npos) return;
  const std::string file = ::getenv("DP_STANDS_FILE"), open = file + ".open";
  ::close(::creat(file.c_str(), 0600));
  constexpr int kTicks = 60000;
  for (int tick = 0; tick < kTicks; ++tick) {
    if (::access(open.c_str(), F_OK) == 0) return;
    ::usleep(10000);
  }
  ::_exit(99);
}

// Blocks before main(), like a rank that is still loading its libraries.
__attribute__((constructor)) void before_main() { stand_in("start", ::getenv("RANK")); }

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  stand_in("open", path);
  static const auto call = next<int (*)(const char*, int, ...)>("open");
  return call(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  stand_in("open", path);
  static const auto call = next<int (*)(int, const char*, int, ...)>("openat");
  return call(folder, path, flags, mode);
}

int flock(int file, int operation) noexcept {
  stand_in("flock", "");
  static const auto call = next<int (*)(int, int)>("flock");
  return call(file, operation);
}

int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  stand_in("getaddrinfo", node);
  static const auto call = next<int (*)(const char*, const char*, const addrinfo*, addrinfo**)>("getaddrinfo");
  return call(node, service, hints, found);
}

// oneDNN's function.
int dnnl_primitive_create(void* primitive, const void* description) {
  stand_in("primitive", "");
  static const auto call = next<int (*)(void*, const void*)>("dnnl_primitive_create");
  return call(primitive, description);
}

int dnnl_primitive_execute(const void* primitive, void* stream, int count, const void* arguments) {
  stand_in("execute", "");
  static const auto call = next<int (*)(const void*, void*, int, const void*)>("dnnl_primitive_execute");
  return call(primitive, stream, count, arguments);
}

// Called by tests/host/fake_driver/standing_driver.cpp.
void dp_stand_in_driver() { stand_in("driver", ""); }
}
