/* Preloaded into a program that is not ours (the broker). The file of TEST_CLOCK has two 64-bit
 * integers that may change while the program runs: the seconds by which its wall clock is ahead, and
 * the microseconds by which each of its syncs takes longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*get_time)(clockid_t, struct timespec *);
typedef int (*sync_file)(int);
static const volatile int64_t *ahead; /* [1]: microseconds */
static get_time real;
static sync_file real_fsync, real_fdatasync;

__attribute__((constructor)) static void map_clock(void) {
  real = (get_time)dlsym(RTLD_NEXT, "clock_gettime");
  real_fsync = (sync_file)dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = (sync_file)dlsym(RTLD_NEXT, "fdatasync");
  const char *path = getenv("TEST_CLOCK");
  int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) abort(); /* a test that believes in a wrong clock would prove nothing */
  void *mapped = mmap(NULL, 2 * sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) abort();
  close(file);
  ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  if (real == NULL) map_clock();
  int code = real(clock, found);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += *ahead;
  return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  found->tv_sec = now.tv_sec;
  found->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found != NULL) *found = now.tv_sec;
  return now.tv_sec;
}

static void wait_for_disk(void) {
  int64_t us = ahead[1]; /* beyond the end of a file of one integer there are zeros */
  struct timespec left = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&left, &left) != 0) continue;
}

int fsync(int file) {
  if (real_fsync == NULL) map_clock();
  wait_for_disk();
  return real_fsync(file);
}

int fdatasync(int file) {
  if (real_fdatasync == NULL) map_clock();
  wait_for_disk();
  return real_fdatasync(file);
}
