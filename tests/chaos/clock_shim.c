/* LD_PRELOAD: the clocks of one process, stepped and drifting as the file named by CHAOS_CLOCK says.
 *
 * The file holds three doubles, written by tests/chaos/clocks.py: the step of CLOCK_REALTIME in seconds, and for
 * the steady clocks seconds per second that they are too fast and the CLOCK_BOOTTIME since when. A drift that
 * ends is turned into a step forward (a fourth double), so that a steady clock never goes back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct shape { double step_s, too_fast, since, gained_s; };
static const volatile struct shape *shape;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_shape(void) {
    const char *path = getenv("CHAOS_CLOCK");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(struct shape), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shape = map;
}

static void add(struct timespec *at, double seconds) {
    long long ns = (long long)at->tv_nsec + (long long)(seconds * 1e9);
    long long whole = ns / 1000000000LL;
    ns -= whole * 1000000000LL;
    if (ns < 0) { ns += 1000000000LL; whole -= 1; }
    at->tv_sec += whole;
    at->tv_nsec = ns;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(id, at);
    if (failed || !shape) return failed;
    switch (id) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE:
        add(at, shape->step_s);
        break;
    case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_RAW: case CLOCK_MONOTONIC_COARSE: case CLOCK_BOOTTIME: {
        struct timespec now;
        double too_fast = shape->too_fast, since = shape->since, gained = shape->gained_s;
        real_clock_gettime(CLOCK_BOOTTIME, &now);
        double drifted = (double)now.tv_sec + now.tv_nsec / 1e9 - since;
        add(at, gained + (drifted > 0 ? drifted * too_fast : 0));
        break;
    }
    default:
        break;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
