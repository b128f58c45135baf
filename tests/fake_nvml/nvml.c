/* A libnvidia-ml.so.1 for tests: the part of NVIDIA's C interface that we use, answered from a text file.
 *
 * The file is named by FAKE_NVML_STATE, holds lines "key value", and is read anew at each call, so that a test
 * (or any process) changes a GPU by replacing it. Keys: count, driver, cuda, gpu.<n>.<what>, lacks.<function>,
 * event.<n> ("<gpu> <xid>"), events (how many there are). Structures as in nvml.h and nvidia-ml-py's pynvml.py.
 * What the library itself sets (MIG, compute mode) is appended to FAKE_NVML_STATE.driver, where the last line counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct { int index; } *nvmlDevice_t;
typedef unsigned int uint;
typedef unsigned long long ull;

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
       DRIVER_NOT_LOADED = 9, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, RESET_REQUIRED = 16, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { MAX_GPUS = 64, XID_EVENT = 8, RECOVERY_ACTION_FIELD = 230, PCIE_REPLAY_FIELD = 94, NVLINK_REPLAY_FIELD = 52,
       UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3,
       RESERVED_MIB = 480 /* as an H100 80GB with driver 580.159.04 */ };

struct pci { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; };
struct field { uint id, scope; long long timestamp, latency; uint type; int status; union { double d; uint u; ull l; } value; };
struct process { uint pid; ull memory; uint gpu_instance, compute_instance; };
struct event { nvmlDevice_t device; ull type, data; uint gpu_instance, compute_instance; };
struct set { long seen; unsigned char listens[MAX_GPUS]; };

static struct { int index; } devices[MAX_GPUS];

/* -- the state file ----------------------------------------------------------------------- */

static int look_up_in(const char *path, const char *key, char *value, size_t size) {
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(file);
    return found;
}

static int look_up(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path) return 0;
    char driver[1024];
    snprintf(driver, sizeof driver, "%s.driver", path);
    return look_up_in(driver, key, value, size) || look_up_in(path, key, value, size);
}

static nvmlReturn_t store(int gpu, const char *what, const char *value) {
    const char *path = getenv("FAKE_NVML_STATE");
    char driver[1024], line[256];
    if (!path) return UNKNOWN;
    snprintf(driver, sizeof driver, "%s.driver", path);
    int length = snprintf(line, sizeof line, "gpu.%d.%s %s\n", gpu, what, value);
    int fd = open(driver, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return UNKNOWN;
    ssize_t written = write(fd, line, (size_t)length);
    close(fd);
    return written == length ? OK : UNKNOWN;
}

static long number(const char *key, long otherwise) {
    char value[64];
    return look_up(key, value, sizeof value) ? atol(value) : otherwise;
}

static int of_gpu(nvmlDevice_t device, const char *what, char *value, size_t size) {
    char key[96];
    snprintf(key, sizeof key, "gpu.%d.%s", device->index, what);
    return look_up(key, value, size);
}

static long gpu_number(nvmlDevice_t device, const char *what, long otherwise) {
    char value[64];
    return of_gpu(device, what, value, sizeof value) ? atol(value) : otherwise;
}

static nvmlReturn_t gpu_text(nvmlDevice_t device, const char *what, char *to, uint size) {
    return of_gpu(device, what, to, size) ? OK : NOT_SUPPORTED;
}

/* What every call on a GPU checks first. */
static nvmlReturn_t check(const char *function, nvmlDevice_t device) {
    char key[128];
    snprintf(key, sizeof key, "lacks.%s", function);
    if (number(key, 0)) return FUNCTION_NOT_FOUND;
    if (number("away", 0)) return UNINITIALIZED; /* as after a driver that was unloaded under us */
    if (!device) return OK;
    if (device->index < 0 || device->index >= number("count", 0)) return INVALID_ARGUMENT;
    while (gpu_number(device, "hangs", 0)) nanosleep(&(struct timespec){0, 20000000}, NULL);
    if (gpu_number(device, "lost", 0)) return GPU_IS_LOST;
    return gpu_number(device, "reset_required", 0) ? RESET_REQUIRED : OK;
}
#define CHECK(device) do { nvmlReturn_t r = check(__func__, device); if (r) return r; } while (0)
#define GIVE(target, what) do { char v[64]; if (!of_gpu(device, what, v, sizeof v)) return NOT_SUPPORTED; \
                                *(target) = strtoull(v, NULL, 0); return OK; } while (0)

/* -- library ------------------------------------------------------------------------------ */

nvmlReturn_t nvmlInitWithFlags(uint flags) {
    (void)flags;
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    return number("count", -1) < 0 || number("away", 0) ? DRIVER_NOT_LOADED : OK;
}
nvmlReturn_t nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case NOT_SUPPORTED: return "Not Supported";
    default: return "fake NVML error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, uint size) { return look_up("driver", text, size) ? OK : UNKNOWN; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = (int)number("cuda", 0); return OK; }

/* -- devices ------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetCount_v2(uint *count) { if (number("away", 0)) return UNINITIALIZED; *count = (uint)number("count", 0); return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint index, nvmlDevice_t *device) {
    if (index >= MAX_GPUS) return INVALID_ARGUMENT;
    CHECK((nvmlDevice_t)&devices[index]);
    *device = (nvmlDevice_t)&devices[index];
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    long count = number("count", 0);
    for (long i = 0; i < count && i < MAX_GPUS; i++) {
        char own[96];
        nvmlDevice_t candidate = (nvmlDevice_t)&devices[i];
        if (of_gpu(candidate, "uuid", own, sizeof own) && !strcmp(own, uuid)) {
            CHECK(candidate);
            *device = candidate;
            return OK;
        }
    }
    return NOT_FOUND;
}
static int is_mig_device(nvmlDevice_t device);
static nvmlReturn_t mig_device_uuid(nvmlDevice_t device, char *to, uint size);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *to, uint size) {
    CHECK(device);
    return is_mig_device(device) ? mig_device_uuid(device, to, size) : gpu_text(device, "uuid", to, size);
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *to, uint size) { CHECK(device); return gpu_text(device, "name", to, size); }
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *to, uint size) { CHECK(device); return gpu_text(device, "serial", to, size); }
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint *to) { CHECK(device); *to = (uint)device->index; return OK; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, uint *to) { CHECK(device); *to = (uint)gpu_number(device, "minor", device->index); return OK; }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CHECK(device);
    char text[32];
    if (!of_gpu(device, "compute_capability", text, sizeof text)) return NOT_SUPPORTED;
    return sscanf(text, "%d.%d", major, minor) == 2 ? OK : UNKNOWN;
}
static nvmlReturn_t pci_of(const char *text, struct pci *to) {
    memset(to, 0, sizeof *to);
    if (sscanf(text, "%x:%x:%x", &to->domain, &to->bus, &to->device) != 3) return UNKNOWN;
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", to->domain, to->bus, to->device);
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", to->domain & 0xFFFF, to->bus & 0xFF, to->device & 0xFF);
    return OK;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *to) {
    CHECK(device);
    char text[64];
    return of_gpu(device, "pci", text, sizeof text) ? pci_of(text, to) : UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, ull *total_free_used) {
    CHECK(device);
    total_free_used[0] = (ull)gpu_number(device, "memory_mib", 0) << 20;
    total_free_used[2] = (ull)(gpu_number(device, "memory_used_mib", 0) + RESERVED_MIB) << 20;
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return OK;
}
#ifndef OLD_DRIVER
struct memory { uint version; ull total, reserved, free, used; };
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory *to) {
    CHECK(device);
    if (to->version != 0x2000028 || gpu_number(device, "old_memory_info", 0)) return ARGUMENT_VERSION_MISMATCH;
    to->total = (ull)gpu_number(device, "memory_mib", 0) << 20;
    to->reserved = (ull)RESERVED_MIB << 20;
    to->used = (ull)gpu_number(device, "memory_used_mib", 0) << 20;
    to->free = to->total - to->reserved - to->used;
    return OK;
}
#endif
/* gpu.<n>.fabric: "<32 hex digits of the cluster's uuid> <clique>"; gpu.<n>.fabric_status */
struct fabric { uint version; unsigned char uuid[16]; uint status, clique, state, health; };
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric *to) {
    CHECK(device);
    if (to->version != 0x2000024) return ARGUMENT_VERSION_MISMATCH;
    char text[96], *at = text;
    memset(to->uuid, 0, sizeof to->uuid);
    to->clique = to->health = 0;
    to->state = 3; /* completed */
    to->status = (uint)gpu_number(device, "fabric_status", 0);
    if (!of_gpu(device, "fabric", text, sizeof text)) return OK;
    for (int i = 0; i < 16; i++, at += 2) {
        uint byte;
        if (sscanf(at, "%2x", &byte) != 1) return UNKNOWN;
        to->uuid[i] = (unsigned char)byte;
    }
    to->clique = (uint)atoi(at);
    return OK;
}
/* -- topology ----------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, uint *level) {
    CHECK(device);
    CHECK(other);
    char a[64], b[64];
    if (of_gpu(device, "switch", a, sizeof a) && of_gpu(other, "switch", b, sizeof b) && !strcmp(a, b)) *level = 20;
    else *level = gpu_number(device, "numa", 0) == gpu_number(other, "numa", 0) ? 40 : 50;
    return OK;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, uint what, uint *status) {
    (void)what;
    CHECK(device);
    CHECK(other);
    *status = (uint)number("p2p", 0);
    return OK;
}
/* gpu.<n>.link.<m>: "<state> <bus id of the far end, or switch>" */
static nvmlReturn_t link_of(nvmlDevice_t device, uint link, int *state, char *peer) {
    char what[32], text[96];
    snprintf(what, sizeof what, "link.%u", link);
    if (!of_gpu(device, what, text, sizeof text)) return gpu_number(device, "links", 0) ? INVALID_ARGUMENT : NOT_SUPPORTED;
    return sscanf(text, "%d %63s", state, peer) == 2 ? OK : UNKNOWN;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, uint link, int *state) {
    CHECK(device);
    char peer[64];
    nvmlReturn_t code = link_of(device, link, state, peer);
    if (!code && (long)link < gpu_number(device, "nvlinks_down", 0)) *state = 0;
    return code;
}
nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, uint link, uint *version) {
    CHECK(device);
    (void)link;
    GIVE(version, "nvlink_version");
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, uint link, uint *kind) {
    CHECK(device);
    char peer[64];
    int state;
    nvmlReturn_t code = link_of(device, link, &state, peer);
    *kind = strcmp(peer, "switch") ? 0 : 2;
    return code;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, uint link, struct pci *to) {
    CHECK(device);
    char peer[64];
    int state;
    nvmlReturn_t code = link_of(device, link, &state, peer);
    return code ? code : pci_of(strcmp(peer, "switch") ? peer : "0000:f0:00.0", to);
}

/* -- health ------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, uint sensor, uint *to) { CHECK(device); (void)sensor; GIVE(to, "temperature_c"); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, uint *to) { CHECK(device); GIVE(to, "power_mw"); }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, uint *gpu_memory) {
    CHECK(device);
    gpu_memory[0] = (uint)gpu_number(device, "utilization", 0);
    gpu_memory[1] = gpu_memory[0] / 2;
    return OK;
}
struct gpm_sample { int number; double percent; };
struct gpm_metric { uint id; nvmlReturn_t status; double value; char *names[3]; };
struct gpm_request { uint version, count; struct gpm_sample *older, *newer; struct gpm_metric metrics[477]; };
struct gpm_support { uint version, is_supported; };
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, struct gpm_support *to) {
    CHECK(device);
    if (to->version != 1) return ARGUMENT_VERSION_MISMATCH;
    to->is_supported = (uint)gpu_number(device, "gpm", 0);
    return OK;
}
nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **to) { *to = calloc(1, sizeof **to); return *to ? OK : UNKNOWN; }
nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample) { free(sample); return OK; }
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *to) {
    static int taken;
    CHECK(device);
    if (gpu_number(device, "gpm_fails", 0)) return UNKNOWN;
    to->number = ++taken;
    to->percent = (double)gpu_number(device, "sm_activity", 0);
    return OK;
}
nvmlReturn_t nvmlGpmMetricsGet(struct gpm_request *request) {
    if (request->version != 1) return ARGUMENT_VERSION_MISMATCH;
    if (!request->older->number || request->older->number >= request->newer->number) return INVALID_ARGUMENT;
    for (uint i = 0; i < request->count; i++) {
        request->metrics[i].status = request->metrics[i].id == 2 /* SM_UTIL */ ? OK : NOT_SUPPORTED;
        request->metrics[i].value = (request->older->percent + request->newer->percent) / 2;
    }
    return OK;
}
static uint power_limits_mw[MAX_GPUS];
enum { LOWEST_MW = 200000, HIGHEST_MW = 700000 };
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, uint *to) {
    CHECK(device);
    *to = power_limits_mw[device->index] ? power_limits_mw[device->index] : HIGHEST_MW;
    return OK;
}
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, uint *to) { CHECK(device); *to = HIGHEST_MW; return OK; }
nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, uint *lowest, uint *highest) {
    CHECK(device);
    *lowest = LOWEST_MW;
    *highest = HIGHEST_MW;
    return OK;
}
nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, uint limit_mw) {
    CHECK(device);
    if (limit_mw < LOWEST_MW || limit_mw > HIGHEST_MW) return INVALID_ARGUMENT;
    power_limits_mw[device->index] = limit_mw;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, ull *to) { CHECK(device); GIVE(to, "energy_mj"); }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, uint *to) { CHECK(device); GIVE(to, "pcie_width"); }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, uint *to) { CHECK(device); *to = 16; return OK; }
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, uint kind, uint counter, ull *to) {
    CHECK(device);
    (void)counter;
    if (kind == 0) GIVE(to, "corrected_ecc");
    GIVE(to, "uncorrected_ecc");
}
#ifndef OLD_DRIVER /* before R510: these symbols do not exist */
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, ull *to) { CHECK(device); GIVE(to, "clock_reasons"); }
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, uint *corrected, uint *uncorrected, uint *pending, uint *failed) {
    CHECK(device);
    *corrected = *uncorrected = 0;
    *pending = (uint)gpu_number(device, "remap_pending", 0);
    *failed = (uint)gpu_number(device, "remap_failed", 0);
    return OK;
}
struct histogram { uint max, high, partial, low, none; };
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, struct histogram *to) {
    CHECK(device);
    *to = (struct histogram){.max = 640, .none = (uint)gpu_number(device, "remap_exhausted", 0)};
    return OK;
}
struct sram { uint version; ull counters[11]; uint threshold_exceeded; };
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, struct sram *to) {
    CHECK(device);
    if (to->version != 0x1000068) return ARGUMENT_VERSION_MISMATCH;
    to->threshold_exceeded = (uint)gpu_number(device, "sram_threshold", 0);
    return OK;
}
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, uint *version_channel_tpc) {
    CHECK(device);
    if (version_channel_tpc[0] != 0x100000c) return ARGUMENT_VERSION_MISMATCH;
    version_channel_tpc[1] = (uint)gpu_number(device, "repair_pending", 0);
    version_channel_tpc[2] = 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field *fields) {
    CHECK(device);
    for (int i = 0; i < count; i++) {
        const char *what = fields[i].id == RECOVERY_ACTION_FIELD ? "recovery_action"
                         : fields[i].id == PCIE_REPLAY_FIELD ? "pcie_replays"
                         : fields[i].id == NVLINK_REPLAY_FIELD ? "nvlink_errors" : NULL;
        fields[i].status = what ? OK : NOT_SUPPORTED;
        fields[i].type = fields[i].id == NVLINK_REPLAY_FIELD ? UNSIGNED_LONG_LONG : UNSIGNED_INT;
        fields[i].value.l = 0;
        if (!what) continue;
        if (fields[i].type == UNSIGNED_LONG_LONG) fields[i].value.l = (ull)gpu_number(device, what, 0);
        else fields[i].value.u = (uint)gpu_number(device, what, 0);
    }
    return OK;
}
/* gpu.<n>.process.<m>: "<pid> <memory MiB> <SM percent> [<GPU instance>]"; gpu.<n>.pid: one that does nothing. Without
 * a GPU instance it is on the whole GPU. gpu.<n>.mps_process.<m>: a client of an MPS server. */
enum { MAX_PROCESSES = 16, NO_INSTANCE = -1 };
struct running { long pid, memory_mib, percent, gi; };
static int is_mig_device(nvmlDevice_t device);
static int gi_of(nvmlDevice_t device);
static int running_on(nvmlDevice_t device, const char *kind, struct running *to) {
    int found = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        char what[32], text[64];
        struct running own = {.gi = NO_INSTANCE};
        snprintf(what, sizeof what, "%s.%d", kind, i);
        if (!of_gpu(device, what, text, sizeof text)) continue;
        if (sscanf(text, "%ld %ld %ld %ld", &own.pid, &own.memory_mib, &own.percent, &own.gi) < 3) continue;
        if (!is_mig_device(device) || gi_of(device) == own.gi) to[found++] = own;
    }
    return found;
}
static nvmlReturn_t processes(nvmlDevice_t device, const char *kind, uint *count, struct process *to) {
    struct running found[MAX_PROCESSES + 1];
    uint room = *count;
    long pid = gpu_number(device, "pid", 0);
    *count = (uint)running_on(device, kind, found);
    if (pid && !strcmp(kind, "process")) found[(*count)++] = (struct running){pid, 1, 0, NO_INSTANCE};
    if (!*count) return OK;
    if (!to || room < *count) return INSUFFICIENT_SIZE;
    for (uint i = 0; i < *count; i++)
        to[i] = (struct process){(uint)found[i].pid, (ull)found[i].memory_mib << 20, (uint)found[i].gi, (uint)found[i].gi};
    return OK;
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, uint *count, struct process *to) { CHECK(device); return processes(device, "mps_process", count, to); }
struct sample { uint pid; ull time_us; uint sm, memory, encoder, decoder; };
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct sample *to, uint *count, ull since_us) {
    CHECK(device);
    struct running all[2 * MAX_PROCESSES];
    struct timespec now;
    uint room = *count;
    char text[8];
    if (is_mig_device(device) || (of_gpu(device, "mig", text, sizeof text) && atoi(text))) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    ull now_us = (ull)now.tv_sec * 1000000 + (ull)now.tv_nsec / 1000;
    int found = running_on(device, "process", all);
    found += running_on(device, "mps_process", all + found);
    *count = 0;
    for (int i = 0; i < found; i++) {
        if (!all[i].percent || since_us >= now_us) continue;
        if (to && *count < room) to[*count] = (struct sample){(uint)all[i].pid, now_us, (uint)all[i].percent, 0, 0, 0};
        ++*count;
    }
    if (!*count) return NOT_FOUND;
    return !to || room < *count ? INSUFFICIENT_SIZE : OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, uint *count, struct process *to) { CHECK(device); return processes(device, "process", count, to); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, uint *count, struct process *to) { CHECK(device); (void)to; *count = 0; return OK; }
#endif

/* -- events ------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, ull *to) { CHECK(device); *to = XID_EVENT; return OK; }
nvmlReturn_t nvmlEventSetCreate(struct set **set) {
    CHECK(NULL);
    *set = calloc(1, sizeof **set);
    (*set)->seen = number("events", 0); /* NVML tells only what happens while one listens */
    return OK;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, ull types, struct set *set) {
    CHECK(device);
    if (types & XID_EVENT) set->listens[device->index] = 1;
    return OK;
}
nvmlReturn_t nvmlEventSetWait_v2(struct set *set, struct event *event, uint timeout_ms) {
    for (long waited = 0;; waited += 2) {
        long events = number("events", 0);
        while (set->seen < events) {
            char key[32], text[64];
            int gpu, xid;
            snprintf(key, sizeof key, "event.%ld", ++set->seen);
            if (!look_up(key, text, sizeof text) || sscanf(text, "%d %d", &gpu, &xid) != 2 || !set->listens[gpu]) continue;
            *event = (struct event){(nvmlDevice_t)&devices[gpu], XID_EVENT, (ull)xid, ~0u, ~0u};
            return OK;
        }
        if (waited >= (long)timeout_ms) return number("wait_fails", 0) ? UNKNOWN : TIMEOUT;
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}
nvmlReturn_t nvmlEventSetFree(struct set *set) { free(set); return OK; }

#include "mig.h"
