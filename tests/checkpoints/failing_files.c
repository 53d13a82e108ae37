/* Preloaded into a process: while the file FAIL_WHEN exists, whatever would write under FAIL_UNDER fails with the error
   number FAIL_ERRNO, as on a disk that breaks or that the kernel has made read-only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(const char *path) {
  const char *under = getenv("FAIL_UNDER"), *when = getenv("FAIL_WHEN");
  return under && when && strncmp(path, under, strlen(under)) == 0 && access(when, F_OK) == 0;
}

static int fails_at(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  return fails(path);
}

static int failure(void) {
  errno = atoi(getenv("FAIL_ERRNO"));
  return -1;
}

#define NEXT(name, result, ...) ((result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *bytes, size_t count) {
  return fails_at(file) ? failure() : NEXT(write, ssize_t, int, const void *, size_t)(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off_t at) {
  return fails_at(file) ? failure() : NEXT(pwrite64, ssize_t, int, const void *, size_t, off_t)(file, bytes, count, at);
}

int fsync(int file) { return fails_at(file) ? failure() : NEXT(fsync, int, int)(file); }

int rename(const char *from, const char *to) {
  return fails(to) ? failure() : NEXT(rename, int, const char *, const char *)(from, to);
}

int open64(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);
  return writes && fails(path) ? failure() : NEXT(open64, int, const char *, int, ...)(path, flags, mode);
}
