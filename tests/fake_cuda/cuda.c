/* A libcuda.so.1 for tests: one device whose memory is the file FAKE_CUDA_MEMORY, so that it outlives processes.
 *
 * FAKE_CUDA_FAULTS holds words: "no_device" (cuInit fails), "lost" (every copy fails with 719), "stuck=<offset>" (that
 * byte is never overwritten), "reserved=<bytes>" (never given), "pieces=<bytes>" (no allocation is larger).
 * FAKE_CUDA_LOG gets the value of CUDA_VISIBLE_DEVICES at each cuInit.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, LAUNCH_FAILED = 719 };
enum { BASE = 0x10000000, PIECES = 65536 };
static unsigned char *memory;
static size_t total, taken;

static const char *fault(const char *name) {
    static char text[256];
    const char *path = getenv("FAKE_CUDA_FAULTS");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return NULL;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length < 0 ? 0 : length] = 0;
    char *found = strstr(text, name);
    return found ? found + strlen(name) : NULL;
}
static size_t size_of(const char *name, size_t otherwise) {
    const char *value = fault(name);
    return value ? strtoull(value, NULL, 0) : otherwise;
}

int cuInit(unsigned flags) {
    (void)flags;
    const char *path = getenv("FAKE_CUDA_MEMORY"), *log = getenv("FAKE_CUDA_LOG"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (fault("no_device") || !path) return NO_DEVICE;
    int fd = open(path, O_RDWR);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) return NO_DEVICE;
    total = (size_t)status.st_size;
    memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) { fprintf(file, "%s\n", visible ? visible : ""); fclose(file); }
    }
    return memory == MAP_FAILED ? NO_DEVICE : 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return memory ? 0 : NOT_INITIALIZED; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = memory; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxSynchronize(void) {
    const char *place = fault("hangs_at=");
    if (place) open(place, O_WRONLY | O_CREAT, 0600);
    while (fault("hangs")) usleep(10000);
    return 0;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = total;
    *free_bytes = total - size_of("reserved=", 0) - taken;
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (size > size_of("pieces=", total) || taken + size > total - size_of("reserved=", 0)) return OUT_OF_MEMORY;
    *address = BASE + taken;
    taken += size;
    return 0;
}
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) {
    const char *stuck = fault("stuck=");
    size_t offset = stuck ? strtoull(stuck, NULL, 0) : 0;
    unsigned char kept = memory[offset];
    for (size_t i = 0; i < count; i++) ((unsigned *)(void *)(memory + address - BASE))[i] = value;
    if (stuck) memory[offset] = kept;
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t address, size_t size) {
    if (fault("lost")) return LAUNCH_FAILED;
    memcpy(to, memory + address - BASE, size);
    return 0;
}
int cuMemFree_v2(uint64_t address) { (void)address; return 0; }
