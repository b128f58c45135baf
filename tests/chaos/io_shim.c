/* LD_PRELOAD: what one process asks of files and names, made to hang or to fail as the file named by CHAOS_IO says.
 *
 * The file is written by tests/chaos/bad_io.py. Only paths that begin with CHAOS_IO_UNDER are concerned; sockets and
 * pipes never are. A call that hangs does so until the file says otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

struct shape { int hangs, read_only, failing_syncs, names_hang; };
static volatile struct shape *shape;
static const char *under = "/nowhere";

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY || ((flags) & (O_CREAT | O_TRUNC)))

__attribute__((constructor)) static void open_shape(void) {
    const char *path = getenv("CHAOS_IO"), *where = getenv("CHAOS_IO_UNDER");
    if (!path || !where) return;
    under = strdup(where);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(struct shape), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) shape = map;
}

static int active(void) { return shape && (shape->hangs || shape->read_only || shape->failing_syncs); }

static int concerns(const char *path) { return path && !strncmp(path, under, strlen(under)); }

static int concerns_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return concerns(path);
}

/* Waits while the disk hangs. Not 0: the call fails, with errno. */
static int refuses(int writes) {
    while (shape->hangs) usleep(20000);
    if (!writes || !shape->read_only) return 0;
    errno = EROFS;
    return -1;
}

#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; va_start(more, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    if (active() && concerns(path) && refuses(WRITES(flags))) return -1; \
    return real(path, flags, mode); \
}
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
int name(int at, const char *path, int flags, ...) { \
    REAL(name); \
    va_list more; va_start(more, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
    va_end(more); \
    if (active() && (concerns(path) || (path[0] != '/' && concerns_fd(at))) && refuses(WRITES(flags))) return -1; \
    return real(at, path, flags, mode); \
}
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (active() && concerns_fd(fd) && refuses(1)) return -1;
    return real(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    if (active() && concerns_fd(fd) && refuses(1)) return -1;
    return real(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    if (active() && concerns_fd(fd) && refuses(1)) return -1;
    return real(fd, data, size, at);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    if (active() && concerns(to) && refuses(1)) return -1;
    return real(from, to);
}
int unlink(const char *path) {
    REAL(unlink);
    if (active() && concerns(path) && refuses(1)) return -1;
    return real(path);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    if (active() && concerns(path) && refuses(1)) return -1;
    return real(path, mode);
}

/* As the kernel does it: an error of a sync is told once, and the next one succeeds. */
static int sync_fails(int fd) {
    if (!active() || !concerns_fd(fd)) return 0;
    if (refuses(1)) return -1;
    if (shape->failing_syncs <= 0) return 0;
    if (__atomic_fetch_sub(&shape->failing_syncs, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
    errno = EIO;
    return -1;
}
int fsync(int fd) { REAL(fsync); return sync_fails(fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return sync_fails(fd) ? -1 : real(fd); }

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    REAL(getaddrinfo);
    while (shape && shape->names_hang) usleep(20000);
    return real(name, service, hints, found);
}
