/* Preloaded into a process: while the file FAIL_WHEN exists, whatever would write under FAIL_UNDER fails with the error
   number FAIL_ERRNO, as on a disk that breaks or that the kernel has made read-only. With FAIL_FROM=N in place of
   FAIL_WHEN all fails from the N-th on that would write (0: nothing does), and each gets a line in the file FAIL_LIST. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void list(const char *what, const char *path) {
  char line[4200];
  int length = snprintf(line, sizeof line, "%s %s\n", what, path);
  int file = syscall(SYS_openat, AT_FDCWD, getenv("FAIL_LIST"), O_WRONLY | O_CREAT | O_APPEND, 0666);
  syscall(SYS_write, file, line, length);
  syscall(SYS_close, file);
}

static int fails(const char *what, const char *path) {
  static int count = 0;
  const char *under = getenv("FAIL_UNDER"), *when = getenv("FAIL_WHEN"), *from = getenv("FAIL_FROM");
  if (!under || strncmp(path, under, strlen(under)) != 0) return 0;
  if (when) return access(when, F_OK) == 0;
  if (!from) return 0;
  if (getenv("FAIL_LIST")) list(what, path);
  return ++count >= atoi(from) && atoi(from) > 0;
}

static int fails_at(const char *what, int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  return fails(what, path);
}

static int failure(void) {
  errno = atoi(getenv("FAIL_ERRNO"));
  return -1;
}

#define NEXT(name, result, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *bytes, size_t count) {
  return fails_at("write", file) ? failure() : NEXT(write, ssize_t, int, const void *, size_t)(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off_t at) {
  return fails_at("write", file) ? failure() : NEXT(pwrite64, ssize_t, int, const void *, size_t, off_t)(file, bytes, count, at);
}

int fsync(int file) { return fails_at("fsync", file) ? failure() : NEXT(fsync, int, int)(file); }

int rename(const char *from, const char *to) {
  return fails("rename", to) ? failure() : NEXT(rename, int, const char *, const char *)(from, to);
}

int mkdir(const char *path, mode_t mode) {
  return fails("mkdir", path) ? failure() : NEXT(mkdir, int, const char *, mode_t)(path, mode);
}

int open64(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);
  return writes && fails("open", path) ? failure() : NEXT(open64, int, const char *, int, ...)(path, flags, mode);
}
