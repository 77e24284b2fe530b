/*
 * Preloaded into redis-server: adds an offset to the time of day that it sees, or holds it still. The file that
 * SYNCGUARD_CLOCK_FILE names has two int64, in microseconds: the offset, and the instant at which the clock stands
 * unless it is 0. The file is mapped, so that what a test writes counts at once.
 * The real time comes by system call: jemalloc asks for it before dlsym() may be used (where libfaketime hangs).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t real_time[2] = {0, 0};
static volatile int64_t *clock_us = real_time;

__attribute__((constructor)) static void start(void) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a jest that is killed leaves no server behind */
  const char *file = getenv("SYNCGUARD_CLOCK_FILE");
  if (!file) return;
  int fd = open(file, O_RDONLY);
  void *map = mmap(NULL, sizeof real_time, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    perror(file);
    _exit(1);
  }
  close(fd);
  clock_us = map;
}

int clock_gettime(clockid_t id, struct timespec *t) {
  int result = syscall(SYS_clock_gettime, id, t);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    int64_t held_us = clock_us[1];
    int64_t ns = held_us ? held_us * 1000 : t->tv_sec * 1000000000LL + t->tv_nsec + clock_us[0] * 1000;
    t->tv_sec = ns / 1000000000LL;
    t->tv_nsec = ns % 1000000000LL;
  }
  return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  (void)zone;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  tv->tv_sec = t.tv_sec;
  tv->tv_usec = t.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (result) *result = t.tv_sec;
  return t.tv_sec;
}
