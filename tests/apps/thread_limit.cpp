// Preloaded into a program. Allows at most DP_THREADS concurrent threads besides the main thread. Simulates `ulimit
// -u`, which does not limit root.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include <atomic>
#include <memory>

namespace {

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

std::atomic<int> living{0};

struct Work {
  void* (*function)(void*);
  void* argument;
};

void* run(void* given) {
  const std::unique_ptr<Work> work(static_cast<Work*>(given));
  void* const result = work->function(work->argument);
  --living;
  return result;
}

int limit() {
  const char* const text = ::getenv("DP_THREADS");
  return text == nullptr ? 1000 : std::atoi(text);
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                              void* argument) {
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (++living > limit()) {
    --living;
    return EAGAIN;
  }
  auto work = std::make_unique<Work>(Work{function, argument});
  const int error = create(thread, attributes, run, work.get());
  if (error == 0)
    work.release();
  else
    --living;
  return error;
}
