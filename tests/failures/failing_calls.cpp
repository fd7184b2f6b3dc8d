// Preloaded into a program. Makes the N-th call of a kind fail: DP_FAIL=fail:alloc:N, fail:file:N, fail:thread:N or
// fail:peer:N. Each process counts its own calls, from the end of its libraries' constructors. A failure is recorded as
// a line of the file DP_FAIL_RECORD.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <new>

#include "support/nth_failure.h"

namespace {

struct Kind {
  const char* name;
  int error;
  dp::test::NthFailure failure;
};
constinit Kind allocations{"alloc", ENOMEM, {}}, files{"file", EIO, {}}, threads{"thread", EAGAIN, {}},
    peers{"peer", ECONNRESET, {}};

__attribute__((constructor)) void arm() {
  for (Kind* const kind : {&allocations, &files, &threads, &peers})
    kind->failure.arm(dp::test::nth_to_fail(kind->name));
}

// Makes no call that is replaced here.
void record(const Kind& kind, const char* call, const char* argument) {
  const char* const path = ::getenv("DP_FAIL_RECORD");
  if (path == nullptr) return;
  char line[512];
  const int length = ::snprintf(line, sizeof line, "%s %s %.400s\n", kind.name, call, argument);
  const long file = ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  ::syscall(SYS_write, file, line, length);
  ::syscall(SYS_close, file);
}

bool fails(Kind& kind, const char* call, const char* argument = "") {
  if (!kind.failure.now()) return false;
  record(kind, call, argument);
  errno = kind.error;
  return true;
}

// The descriptions of the machine in /proc and /sys are no files of a run.
bool is_of_machine(const char* path) {
  return ::strncmp(path, "/sys/", 5) == 0 || (::strncmp(path, "/proc/", 6) == 0 && ::strstr(path, "/fd/") == nullptr);
}

bool fails_at(const char* path, const char* call) { return !is_of_machine(path) && fails(files, call, path); }

// Only regular files and folders. No call on a standard descriptor, pipe or terminal fails.
bool fails_on(int file, const char* call) {
  struct stat status {};
  if (file <= STDERR_FILENO || ::syscall(SYS_fstat, file, &status) != 0) return false;
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return false;
  char link[64], path[400] = "";
  ::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ::syscall(SYS_readlink, link, path, sizeof path - 1);
  return fails_at(path, call);
}

bool is_socket(int file) {
  struct stat status {};
  return ::syscall(SYS_fstat, file, &status) == 0 && S_ISSOCK(status.st_mode);
}

bool fails_on_peer(int file, const char* call) { return is_socket(file) && fails(peers, call); }

// The file of the library or program with this code.
const char* file_of(const void* code) {
  Dl_info info{};
  return ::dladdr(code, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool fails_to_allocate(std::size_t bytes, const char* call, const void* caller) {
  return bytes >= (64 << 10) && fails(allocations, call, file_of(caller));
}

}  // namespace

#ifdef DP_OWN_NEW
// The operator new of a sanitizer does not call malloc.
template <typename... Alignment>
void* allocate(const char* symbol, const void* caller, std::size_t bytes, Alignment... alignment) {
  if (fails_to_allocate(bytes, "operator new", caller)) throw std::bad_alloc();
  return reinterpret_cast<void* (*)(std::size_t, Alignment...)>(::dlsym(RTLD_NEXT, symbol))(bytes, alignment...);
}
void* operator new(std::size_t bytes) { return allocate("_Znwm", __builtin_return_address(0), bytes); }
void* operator new[](std::size_t bytes) { return allocate("_Znam", __builtin_return_address(0), bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate("_ZnwmSt11align_val_t", __builtin_return_address(0), bytes, alignment);
}
#endif

// The next function of this name: libc's, or a sanitizer's.
#define NEXT(name, ...)                                                                      \
  ([&] {                                                                                     \
    static const auto next = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name)); \
    return next(__VA_ARGS__);                                                                \
  }())

extern "C" {

void* malloc(std::size_t bytes) noexcept {
  if (fails_to_allocate(bytes, "malloc", __builtin_return_address(0))) return nullptr;
  return NEXT(malloc, bytes);
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  if (fails_to_allocate(count * bytes, "calloc", __builtin_return_address(0))) return nullptr;
  return NEXT(calloc, count, bytes);
}
void* realloc(void* old, std::size_t bytes) noexcept {
  if (fails_to_allocate(bytes, "realloc", __builtin_return_address(0))) return nullptr;
  return NEXT(realloc, old, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  if (fails_to_allocate(bytes, "aligned_alloc", __builtin_return_address(0))) return nullptr;
  return NEXT(aligned_alloc, alignment, bytes);
}
int posix_memalign(void** place, std::size_t alignment, std::size_t bytes) noexcept {
  if (fails_to_allocate(bytes, "posix_memalign", __builtin_return_address(0))) return ENOMEM;
  return NEXT(posix_memalign, place, alignment, bytes);
}
void* mmap(void* at, std::size_t bytes, int access, int flags, int file, off_t offset) noexcept {
  // oneDNN 2.6 does not check the memory for the code that it generates.
  const void* const caller = __builtin_return_address(0);
  if (::strstr(file_of(caller), "libdnnl") == nullptr && fails_to_allocate(bytes, "mmap", caller)) return MAP_FAILED;
  return NEXT(mmap, at, bytes, access, flags, file, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  // OpenMP ends the process if it cannot start a thread. The engine first starts as many threads as a test.
  if (::strstr(file_of(__builtin_return_address(0)), "libgomp") == nullptr && fails(threads, "pthread_create"))
    return EAGAIN;
  return NEXT(pthread_create, thread, attributes, function, argument);
}

#define MODE(flags)                               \
  int mode = 0;                                   \
  if (((flags) & (O_CREAT | __O_TMPFILE)) != 0) { \
    va_list rest;                                 \
    va_start(rest, flags);                        \
    mode = va_arg(rest, int);                     \
    va_end(rest);                                 \
  }
#define OPEN(name)                             \
  int name(const char* path, int flags, ...) { \
    MODE(flags)                                \
    if (fails_at(path, "open")) return -1;     \
    return NEXT(name, path, flags, mode);      \
  }
#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    MODE(flags)                                            \
    if (fails_at(path, "openat")) return -1;               \
    return NEXT(name, folder, path, flags, mode);          \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FILE* fopen(const char* path, const char* mode) {
  if (fails_at(path, "fopen")) return nullptr;
  return NEXT(fopen, path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  if (fails_at(path, "fopen")) return nullptr;
  return NEXT(fopen64, path, mode);
}
DIR* opendir(const char* path) {
  if (fails_at(path, "opendir")) return nullptr;
  return NEXT(opendir, path);
}
DIR* fdopendir(int file) {
  if (fails_on(file, "fdopendir")) return nullptr;
  return NEXT(fdopendir, file);
}
dirent* readdir(DIR* folder) {
  if (fails_on(::dirfd(folder), "readdir")) return nullptr;
  return NEXT(readdir, folder);
}
dirent64* readdir64(DIR* folder) {
  if (fails_on(::dirfd(folder), "readdir")) return nullptr;
  return NEXT(readdir64, folder);
}

ssize_t read(int file, void* data, std::size_t bytes) {
  if (fails_on(file, "read")) return -1;
  return NEXT(read, file, data, bytes);
}
ssize_t pread(int file, void* data, std::size_t bytes, off_t offset) {
  if (fails_on(file, "pread")) return -1;
  return NEXT(pread, file, data, bytes, offset);
}
ssize_t pread64(int file, void* data, std::size_t bytes, off64_t offset) {
  if (fails_on(file, "pread")) return -1;
  return NEXT(pread64, file, data, bytes, offset);
}
ssize_t write(int file, const void* data, std::size_t bytes) {
  if (fails_on(file, "write")) return -1;
  return NEXT(write, file, data, bytes);
}
ssize_t writev(int file, const iovec* parts, int count) {
  if (fails_on(file, "writev")) return -1;
  return NEXT(writev, file, parts, count);
}
int fsync(int file) {
  if (fails_on(file, "fsync")) return -1;
  return NEXT(fsync, file);
}
int ftruncate(int file, off_t bytes) noexcept {
  if (fails_on(file, "ftruncate")) return -1;
  return NEXT(ftruncate, file, bytes);
}
int flock(int file, int operation) noexcept {
  if (fails_on(file, "flock")) return -1;
  return NEXT(flock, file, operation);
}
int fstat(int file, struct stat* status) noexcept {
  if (fails_on(file, "fstat")) return -1;
  return NEXT(fstat, file, status);
}
int fstat64(int file, struct stat64* status) noexcept {
  if (fails_on(file, "fstat")) return -1;
  return NEXT(fstat64, file, status);
}
// The system closes a file even if it reports an error.
int close(int file) {
  const bool failed = fails_on(file, "close");
  const int result = NEXT(close, file);
  if (failed) errno = EIO;
  return failed ? -1 : result;
}

int stat(const char* path, struct stat* status) noexcept {
  if (fails_at(path, "stat")) return -1;
  return NEXT(stat, path, status);
}
int stat64(const char* path, struct stat64* status) noexcept {
  if (fails_at(path, "stat")) return -1;
  return NEXT(stat64, path, status);
}
int lstat(const char* path, struct stat* status) noexcept {
  if (fails_at(path, "lstat")) return -1;
  return NEXT(lstat, path, status);
}
int lstat64(const char* path, struct stat64* status) noexcept {
  if (fails_at(path, "lstat")) return -1;
  return NEXT(lstat64, path, status);
}
int statvfs(const char* path, struct statvfs* status) noexcept {
  if (fails_at(path, "statvfs")) return -1;
  return NEXT(statvfs, path, status);
}
int access(const char* path, int mode) noexcept {
  if (fails_at(path, "access")) return -1;
  return NEXT(access, path, mode);
}
char* realpath(const char* path, char* resolved) noexcept {
  if (fails_at(path, "realpath")) return nullptr;
  return NEXT(realpath, path, resolved);
}
ssize_t readlink(const char* path, char* target, std::size_t bytes) noexcept {
  if (fails_at(path, "readlink")) return -1;
  return NEXT(readlink, path, target, bytes);
}
int mkdir(const char* path, mode_t mode) noexcept {
  if (fails_at(path, "mkdir")) return -1;
  return NEXT(mkdir, path, mode);
}
int rename(const char* from, const char* to) noexcept {
  if (fails_at(from, "rename")) return -1;
  return NEXT(rename, from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (fails_at(from, "renameat2")) return -1;
  return NEXT(renameat2, from_folder, from, to_folder, to, flags);
}
int symlink(const char* target, const char* path) noexcept {
  if (fails_at(path, "symlink")) return -1;
  return NEXT(symlink, target, path);
}
int unlink(const char* path) noexcept {
  if (fails_at(path, "unlink")) return -1;
  return NEXT(unlink, path);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  if (fails_at(path, "unlinkat")) return -1;
  return NEXT(unlinkat, folder, path, flags);
}
int remove(const char* path) noexcept {
  if (fails_at(path, "remove")) return -1;
  return NEXT(remove, path);
}
int rmdir(const char* path) noexcept {
  if (fails_at(path, "rmdir")) return -1;
  return NEXT(rmdir, path);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  if (fails(files, "memfd_create", name)) return -1;
  return NEXT(memfd_create, name, flags);
}

int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  if (fails(peers, "getaddrinfo", node == nullptr ? "" : node)) return EAI_AGAIN;
  return NEXT(getaddrinfo, node, service, hints, found);
}
int socket(int domain, int type, int protocol) noexcept {
  if (fails(peers, "socket")) return -1;
  return NEXT(socket, domain, type, protocol);
}
int bind(int file, const sockaddr* address, socklen_t bytes) noexcept {
  if (fails(peers, "bind")) return -1;
  return NEXT(bind, file, address, bytes);
}
int listen(int file, int most) noexcept {
  if (fails(peers, "listen")) return -1;
  return NEXT(listen, file, most);
}
int connect(int file, const sockaddr* address, socklen_t bytes) {
  if (fails(peers, "connect")) return -1;
  return NEXT(connect, file, address, bytes);
}
int accept4(int file, sockaddr* address, socklen_t* bytes, int flags) {
  if (fails(peers, "accept4")) return -1;
  return NEXT(accept4, file, address, bytes, flags);
}
ssize_t send(int file, const void* data, std::size_t bytes, int flags) {
  if (fails_on_peer(file, "send")) return -1;
  return NEXT(send, file, data, bytes, flags);
}
ssize_t recv(int file, void* data, std::size_t bytes, int flags) {
  if (fails_on_peer(file, "recv")) return -1;
  return NEXT(recv, file, data, bytes, flags);
}
}
