"""Time that does not run as usual: a coordinator that stands still for a minute, a clock that jumps both ways. No job fails,
no living worker is lost, and everything goes on.

usage: faults_time_test.py [seed=N] [TEST ...]
"""

import subprocess
import time

from faults import add_rows, add_small_model, check_no_job_failed, check_stops, seeded, small_job, step_of, stopped, until, workers_of
from house import House, Skipped, main

STILL_SECONDS = 60
GOES_ON_SECONDS = 15
LEASE_SECONDS = 30

# The wall clock of a program, moved by as many seconds as the file named in CLOCK_OFFSET_FILE says. Waits that end at a time
# of the wall clock are told the real one, as the kernel counts by it.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long Offset(void) {
  char text[32] = {0};
  const char* path = getenv("CLOCK_OFFSET_FILE");
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof(text) - 1);
  close(file);
  return length > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += Offset();
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec time;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* restrict cond, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict end) {
  static int (*real)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  struct timespec now, until = *end;
  // A condition may count by the monotonic clock, whose times are far before the wall's.
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  if (end->tv_sec < now.tv_sec / 2) return real(cond, mutex, CLOCK_MONOTONIC, end);
  until.tv_sec -= Offset();
  return real(cond, mutex, CLOCK_REALTIME, &until);
}
"""


class ShiftedHouse(House):
    """A daemon, and workers of its own, whose wall clock the test moves."""

    def __init__(self, *options):
        super().__init__(None, *options)
        self.offset_file = self.folder / "offset"
        self.offset_file.write_text("0")
        source, self.shim = self.folder / "shim.c", self.folder / "shim.so"
        source.write_text(SHIM)
        if subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", self.shim, source, "-ldl"], capture_output=True).returncode != 0:
            self.clear()
            raise Skipped("needs gcc")

    def command(self, *options):
        return ["env", f"LD_PRELOAD={self.shim}", f"CLOCK_OFFSET_FILE={self.offset_file}", *super().command(*options)]

    def jump(self, seconds):
        """To so many seconds from the real time."""
        new = self.offset_file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.offset_file)


def test_a_coordinator_that_stands_still():
    with House(None, "--workers", "cpu:2", "--worker-threads", 1) as house:
        add_small_model(house)
        add_small_model(house, "other", seed=2)
        add_rows(house, "rows")
        jobs = [house.submit(small_job(model=model, max_steps=10_000)) for model in ("small", "other")]
        for job in jobs:
            until(lambda: step_of(house, job) > 5, 30, "the first steps")
        before = workers_of(house)
        with stopped(house.process.pid):
            time.sleep(STILL_SECONDS)
        reached = [step_of(house, job) for job in jobs]
        for job, step in zip(jobs, reached):
            until(lambda: step_of(house, job) > step + 5, GOES_ON_SECONDS, f"steps of {job} after the pause")
        assert workers_of(house) == before, f"workers (pid, restarts) {before} became {workers_of(house)}"
        for job in jobs:
            assert "WORKER_LOST" not in house.lora("events", job).out, f"{job} lost its worker"
        check_no_job_failed(house)
        check_stops(house, 60)
    house.clear()


def test_a_clock_that_jumps():
    """Forwards beyond every lease, back before the start, and to and fro."""
    generator = seeded()
    with ShiftedHouse("--workers", "cpu:1", "--worker-threads", 1) as house:
        add_small_model(house)
        add_rows(house, "rows")
        job = house.submit(small_job(max_steps=100_000))
        until(lambda: step_of(house, job) > 5, 30, "the first steps")
        before = workers_of(house)
        jumps = [120, -3600, 0, 86_400, -86_400 * 30] + [generator.randrange(-10_000, 10_000) for _ in range(3)]
        for offset in jumps:
            house.jump(offset)
            step = step_of(house, job)
            until(lambda: step_of(house, job) > step + 5, GOES_ON_SECONDS, f"steps after a jump to {offset} s")
            small = house.submit(small_job(max_steps=3))
            house.wait([small], seconds=GOES_ON_SECONDS)
            assert workers_of(house) == before, f"a jump to {offset} s: workers (pid, restarts) {before} became {workers_of(house)}"
        assert "WORKER_LOST" not in house.lora("events", job).out, "the job lost its worker"
        check_no_job_failed(house)
        # Silence is counted by time that runs, whatever the clock says.
        house.jump(-100_000)
        ((pid, _),) = before.values()
        with stopped(pid):
            until(lambda: not workers_of(house), LEASE_SECONDS + GOES_ON_SECONDS, "a silent worker is lost")
        step = step_of(house, job)
        until(lambda: step_of(house, job) > step + 5, 2 * GOES_ON_SECONDS, "steps after the worker is there again")
        house.lora("cancel", job)
        house.wait([job], state="CANCELLED", seconds=GOES_ON_SECONDS)
        check_stops(house, 60)
    house.clear()


if __name__ == "__main__":
    main([test_a_coordinator_that_stands_still, test_a_clock_that_jumps])
