// Preloaded into a program, it makes the N-th call of one function fail, as a full disk, a signal
// or want of memory would.
//
// KVBOUND_FAULT=FUNCTION:N:ERRNO    FUNCTION: one of kFunctions; N: from 1, counted in each process
//                                   from its start, in children of fork from their parent's count; 0:
//                                   no call fails. ERRNO: what the call fails with; 0, for those that
//                                   transfer bytes: it transfers one
// KVBOUND_FAULT_LOG=FILE            gets a line "failed" when that call fails, and "FUNCTION COUNT" of all
//                                   when a process ends by exit()
//
// OpenBLAS always gets the memory that it asks for. Calls are counted from this library's constructor on,
// when the libraries that the program needs are there. glibc's own calls, such as those of fwrite, are none.
#undef _FORTIFY_SOURCE  // whose headers define some of these functions themselves
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
int __open_2(const char*, int);
}

namespace {

enum Function {
  kMalloc,
  kOpen,
  kOpenFolder,
  kRead,
  kPread,
  kWrite,
  kFsync,
  kClose,
  kRename,
  kFtruncate,
  kUnlink,
  kMkdir,
  kStat,
  kThread,
  kNone
};

constexpr std::array<std::string_view, kNone> kFunctions{
    "malloc", "open",   "open-folder", "read",   "pread", "write", "fsync",
    "close",  "rename", "ftruncate",   "unlink", "mkdir", "stat",  "thread"};

struct Fault {
  Function function = kNone;
  long call = 0;
  int error = 0;
};

Fault fault;
std::array<std::atomic<long>, kNone> calls{};

// Appends to the log, by system calls, which are not counted, and without memory.
void log(std::string_view name, long number) {
  const char* path = std::getenv("KVBOUND_FAULT_LOG");
  if (!path) return;
  std::array<char, 64> line;
  const int length = std::snprintf(line.data(), line.size(), "%s %ld\n", name.data(), number);
  const long file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  syscall(SYS_write, file, line.data(), length);
  syscall(SYS_close, file);
}

// The code of OpenBLAS, whose kernels for small products use memory without looking whether they got any.
uintptr_t openblas_begin = 0, openblas_end = 0;

int find_openblas(dl_phdr_info* library, size_t, void*) {
  if (!std::strstr(library->dlpi_name, "openblas")) return 0;
  for (const ElfW(Phdr) & part : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
    if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
    openblas_begin = library->dlpi_addr + part.p_vaddr;
    openblas_end = openblas_begin + part.p_memsz;
  }
  return 1;
}

[[gnu::constructor]] void begin() {
  const char* asked = std::getenv("KVBOUND_FAULT");
  if (!asked) return;
  const std::string_view name(asked, std::strcspn(asked, ":"));
  char* rest = nullptr;
  fault.call = std::strtol(asked + name.size() + 1, &rest, 10);
  fault.error = std::atoi(rest + 1);
  fault.function = static_cast<Function>(std::ranges::find(kFunctions, name) - kFunctions.begin());
  if (fault.function == kNone) std::abort();
  dl_iterate_phdr(find_openblas, nullptr);
}

[[gnu::destructor]] void end() {
  for (size_t i = 0; i < kFunctions.size(); ++i) log(kFunctions[i], calls[i]);
}

// Whether this call fails; errno is set then.
bool fails(Function function) {
  if (fault.function == kNone || ++calls[function] != fault.call || function != fault.function) return false;
  log("failed", fault.call);
  errno = fault.error;
  return true;
}

bool allocation_fails(const void* caller) {
  const auto place = reinterpret_cast<uintptr_t>(caller);
  return !(openblas_begin <= place && place < openblas_end) && fails(kMalloc);
}

// The function of that name that would be called without this library.
template <class Call>
Call* behind(Call*, const char* name) {
  return reinterpret_cast<Call*>(dlsym(RTLD_NEXT, name));
}

// What a failing call returns that would otherwise have transferred bytes.
template <class Transfer>
ssize_t cut_short(size_t bytes, const Transfer& transfer) {
  return fault.error != 0 ? -1 : transfer(std::min<size_t>(bytes, 1));
}

mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

void* malloc(size_t bytes) noexcept {
  return allocation_fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) noexcept {
  return allocation_fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}

void* realloc(void* memory, size_t bytes) noexcept {
  return allocation_fails(__builtin_return_address(0)) ? nullptr : __libc_realloc(memory, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return allocation_fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
}

int posix_memalign(void** memory, size_t alignment, size_t bytes) noexcept {
  void* found = allocation_fails(__builtin_return_address(0)) ? nullptr : __libc_memalign(alignment, bytes);
  if (!found) return ENOMEM;
  *memory = found;
  return 0;
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  static const auto next = behind(open, "open");
  return fails(kOpen) ? -1 : next(path, flags, mode);
}

// What _FORTIFY_SOURCE makes of it where no file may be made.
int __open_2(const char* path, int flags) {
  static const auto next = behind(__open_2, "__open_2");
  return fails(kOpen) ? -1 : next(path, flags);
}

// How libstdc++ opens a folder.
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  static const auto next = behind(openat, "openat");
  return fails(kOpenFolder) ? -1 : next(folder, path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  static const auto next = behind(fopen, "fopen");
  return fails(kOpen) ? nullptr : next(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  static const auto next = behind(fopen64, "fopen64");
  return fails(kOpen) ? nullptr : next(path, mode);
}

ssize_t read(int file, void* bytes, size_t count) {
  static const auto next = behind(read, "read");
  return fails(kRead) ? cut_short(count, [&](size_t some) { return next(file, bytes, some); })
                      : next(file, bytes, count);
}

ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
  static const auto next = behind(pread, "pread");
  return fails(kPread) ? cut_short(count, [&](size_t some) { return next(file, bytes, some, offset); })
                       : next(file, bytes, count, offset);
}

// Standard error is left alone: what it would say is judged.
ssize_t write(int file, const void* bytes, size_t count) {
  static const auto next = behind(write, "write");
  return file != STDERR_FILENO && fails(kWrite)
             ? cut_short(count, [&](size_t some) { return next(file, bytes, some); })
             : next(file, bytes, count);
}

ssize_t writev(int file, const iovec* parts, int count) {
  static const auto next = behind(writev, "writev");
  return file != STDERR_FILENO && fails(kWrite) ? cut_short(parts->iov_len,
                                                            [&](size_t some) {
                                                              const iovec part{parts->iov_base, some};
                                                              return next(file, &part, 1);
                                                            })
                                                : next(file, parts, count);
}

int fsync(int file) {
  static const auto next = behind(fsync, "fsync");
  return fails(kFsync) ? -1 : next(file);
}

// A close that fails has closed the file all the same.
int close(int file) {
  static const auto next = behind(close, "close");
  if (!fails(kClose)) return next(file);
  next(file);
  errno = fault.error;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = behind(rename, "rename");
  return fails(kRename) ? -1 : next(from, to);
}

int ftruncate(int file, off_t bytes) noexcept {
  static const auto next = behind(ftruncate, "ftruncate");
  return fails(kFtruncate) ? -1 : next(file, bytes);
}

int unlink(const char* path) noexcept {
  static const auto next = behind(unlink, "unlink");
  return fails(kUnlink) ? -1 : next(path);
}

int remove(const char* path) noexcept {
  static const auto next = behind(remove, "remove");
  return fails(kUnlink) ? -1 : next(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = behind(mkdir, "mkdir");
  return fails(kMkdir) ? -1 : next(path, mode);
}

int stat(const char* path, struct stat* status) noexcept {
  static const auto next = behind<int(const char*, struct stat*)>(nullptr, "stat");
  return fails(kStat) ? -1 : next(path, status);
}

int fstat(int file, struct stat* status) noexcept {
  static const auto next = behind<int(int, struct stat*)>(nullptr, "fstat");
  return fails(kStat) ? -1 : next(file, status);
}

int fstat64(int file, struct stat64* status) noexcept {
  static const auto next = behind<int(int, struct stat64*)>(nullptr, "fstat64");
  return fails(kStat) ? -1 : next(file, status);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  static const auto next = behind(pthread_create, "pthread_create");
  return fails(kThread) ? fault.error : next(thread, attributes, body, argument);
}

}  // extern "C"
