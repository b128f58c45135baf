/* MIG and compute mode of the fake library; a part of nvml.c.
 *
 * profile.<NVML's index>  "<id> <compute slices> <memory slices> <max instances> <+me> <first slice>..."
 * gpu.<n>.mig, .mig_pending, .compute_mode; gpu.<n>.gi.<id>  "<profile id> <start> <size> <compute instance or -1>", or "-"
 * mig_needs_reset: the mode that was set is pending until gpu.<n>.mig is written (by a stand-in of nvidia-smi).
 */
enum { MAX_GI = 15, PROFILES = 18 };
struct placement { uint start, size; };
struct gi_info { nvmlDevice_t device; uint id, profile; struct placement placement; };
struct profile { int id, slices, memory, max, me, starts[8], count; };
struct instance { int profile, start, size, ci; };

static struct { int index, gi; } handles[MAX_GPUS][MAX_GI + 1];
typedef struct { int index, gi; } *nvmlGpuInstance_t, *nvmlComputeInstance_t;

static int is_mig_device(nvmlDevice_t device) {
    return (void *)device >= (void *)handles && (void *)device < (void *)(&handles[MAX_GPUS]);
}
static void *handle_of(int index, int gi) {
    handles[index][gi].index = index;
    handles[index][gi].gi = gi;
    return &handles[index][gi];
}
static int gi_of(nvmlDevice_t device) { return ((nvmlGpuInstance_t)(void *)device)->gi; }
static nvmlReturn_t mig_device_uuid(nvmlDevice_t device, char *to, uint size) {
    char parent[96];
    if (!of_gpu(device, "uuid", parent, sizeof parent)) return NOT_FOUND;
    snprintf(to, size, "MIG-%02d%.34s", gi_of(device), parent + 6);
    return OK;
}
static int profile_at(uint index, struct profile *to) {
    char key[32], text[128];
    snprintf(key, sizeof key, "profile.%u", index);
    memset(to, 0, sizeof *to);
    if (!look_up(key, text, sizeof text)) return 0;
    int used = 0, *s = to->starts;
    if (sscanf(text, "%d %d %d %d %d%n", &to->id, &to->slices, &to->memory, &to->max, &to->me, &used) != 5) return 0;
    for (int more; to->count < 8 && sscanf(text + used, "%d%n", &s[to->count], &more) == 1; to->count++) used += more;
    return 1;
}
static int profile_of(int id, struct profile *to) {
    for (uint index = 0; index < PROFILES; index++)
        if (profile_at(index, to) && to->id == id) return 1;
    return 0;
}
static int instance_at(int gpu, int gi, struct instance *to) {
    char key[48], text[64];
    snprintf(key, sizeof key, "gpu.%d.gi.%d", gpu, gi);
    return look_up(key, text, sizeof text) && sscanf(text, "%d %d %d %d", &to->profile, &to->start, &to->size, &to->ci) == 4;
}
static nvmlReturn_t store_instance(int gpu, int gi, const struct instance *instance) {
    char what[24], text[64] = "-";
    snprintf(what, sizeof what, "gi.%d", gi);
    if (instance) snprintf(text, sizeof text, "%d %d %d %d", instance->profile, instance->start, instance->size, instance->ci);
    return store(gpu, what, text);
}
static nvmlReturn_t compute_instance(int gpu, int gi, int from, int to) {
    struct instance own;
    if (!instance_at(gpu, gi, &own)) return NOT_FOUND;
    if (own.ci != from) return INSUFFICIENT_RESOURCES;
    own.ci = to;
    return store_instance(gpu, gi, &own);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode) { CHECK(device); *mode = (int)gpu_number(device, "compute_mode", 0); return OK; }
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, int mode) {
    CHECK(device);
    char text[16];
    snprintf(text, sizeof text, "%d", mode);
    return store(device->index, "compute_mode", text);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, uint *current, uint *pending) {
    CHECK(device);
    char text[8];
    if (!of_gpu(device, "mig", text, sizeof text)) return NOT_SUPPORTED;
    *current = (uint)atol(text);
    *pending = (uint)gpu_number(device, "mig_pending", *current);
    return OK;
}
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, uint mode, nvmlReturn_t *status) {
    CHECK(device);
    struct instance any;
    char text[16];
    if (!of_gpu(device, "mig", text, sizeof text)) return NOT_SUPPORTED;
    if (gpu_number(device, "pid", 0)) return IN_USE;
    for (int gi = 1; gi < MAX_GI; gi++) if (instance_at(device->index, gi, &any)) return IN_USE;
    snprintf(text, sizeof text, "%u", mode);
    *status = number("mig_needs_reset", 0) ? RESET_REQUIRED : OK;
    nvmlReturn_t code = store(device->index, "mig_pending", text);
    return code || *status ? code : store(device->index, "mig", text);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, uint index, uint *info) {
    CHECK(device);
    struct profile profile;
    if (!profile_at(index, &profile)) return NOT_SUPPORTED;
    memset(info, 0, 48);
    info[0] = (uint)profile.id;
    info[2] = (uint)profile.slices;
    info[3] = (uint)profile.max;
    return OK;
}
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, uint id, struct placement *to, uint *count) {
    CHECK(device);
    struct profile profile;
    if (!profile_of((int)id, &profile)) return INVALID_ARGUMENT;
    if (to && *count < (uint)profile.count) return INSUFFICIENT_SIZE;
    *count = (uint)profile.count;
    for (int i = 0; to && i < profile.count; i++) to[i] = (struct placement){(uint)profile.starts[i], (uint)profile.memory};
    return OK;
}
nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, uint id, const struct placement *at, nvmlGpuInstance_t *to) {
    CHECK(device);
    struct profile profile, other_profile;
    struct instance other, own = {(int)id, (int)at->start, 0, -1};
    int possible = 0, slices, media, free_gi = 0;
    if (!gpu_number(device, "mig", 0)) return NOT_SUPPORTED;
    if (!profile_of((int)id, &profile)) return INVALID_ARGUMENT;
    own.size = profile.memory;
    slices = profile.slices;
    media = profile.me;
    for (int i = 0; i < profile.count; i++) possible |= profile.starts[i] == own.start;
    for (int gi = 1; gi < MAX_GI; gi++) {
        if (!instance_at(device->index, gi, &other)) { if (!free_gi) free_gi = gi; continue; }
        if (other.start < own.start + own.size && own.start < other.start + other.size) return INSUFFICIENT_RESOURCES;
        if (profile_of(other.profile, &other_profile)) { slices += other_profile.slices; media += other_profile.me; }
    }
    if (!possible || !free_gi || media > 1 || slices > number("mig_compute_slices", 7)) return INSUFFICIENT_RESOURCES;
    *to = handle_of(device->index, free_gi);
    return store_instance(device->index, free_gi, &own);
}
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, uint id, nvmlGpuInstance_t *to, uint *count) {
    CHECK(device);
    struct instance own;
    *count = 0;
    for (int gi = 1; gi < MAX_GI; gi++)
        if (instance_at(device->index, gi, &own) && own.profile == (int)id) to[(*count)++] = handle_of(device->index, gi);
    return OK;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, uint gi, nvmlGpuInstance_t *to) {
    CHECK(device);
    struct instance own;
    if (gi >= MAX_GI || !instance_at(device->index, (int)gi, &own)) return NOT_FOUND;
    *to = handle_of(device->index, (int)gi);
    return OK;
}
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, struct gi_info *to) {
    struct instance own;
    if (!instance_at(gi->index, gi->gi, &own)) return NOT_FOUND;
    *to = (struct gi_info){(nvmlDevice_t)&devices[gi->index], (uint)gi->gi, (uint)own.profile, {(uint)own.start, (uint)own.size}};
    return OK;
}
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi) {
    struct instance own;
    if (!instance_at(gi->index, gi->gi, &own)) return NOT_FOUND;
    if (own.ci >= 0 || gpu_number((nvmlDevice_t)gi, "mig_in_use", 0)) return IN_USE;
    return store_instance(gi->index, gi->gi, NULL);
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gi, uint index, uint engine, uint *info) {
    static const int slices[] = {1, 2, 3, 4, 7, 8, 6};
    struct instance own;
    struct profile profile;
    (void)engine;
    if (!instance_at(gi->index, gi->gi, &own) || !profile_of(own.profile, &profile)) return NOT_FOUND;
    if (index >= 7 || slices[index] != profile.slices) return NOT_SUPPORTED;
    info[1] = index; /* after the version */
    info[2] = (uint)profile.slices;
    info[3] = 1;
    return OK;
}
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, uint id, nvmlComputeInstance_t *to) {
    (void)id;
    if (gpu_number((nvmlDevice_t)gi, "mig_no_compute_instance", 0)) return INSUFFICIENT_RESOURCES;
    *to = (nvmlComputeInstance_t)(void *)gi;
    return compute_instance(gi->index, gi->gi, -1, 0);
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, uint id, nvmlComputeInstance_t *to, uint *count) {
    (void)id;
    struct instance own;
    if (!instance_at(gi->index, gi->gi, &own)) return NOT_FOUND;
    *count = own.ci >= 0;
    if (own.ci >= 0) to[0] = (nvmlComputeInstance_t)(void *)gi;
    return OK;
}
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci) {
    return gpu_number((nvmlDevice_t)ci, "mig_in_use", 0) ? IN_USE : compute_instance(ci->index, ci->gi, 0, -1);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, uint *count) {
    CHECK(device);
    char text[8];
    *count = of_gpu(device, "mig", text, sizeof text) ? (uint)number("mig_compute_slices", 7) : 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, uint index, nvmlDevice_t *to) {
    CHECK(device);
    struct instance own;
    for (int gi = 1; gi < MAX_GI; gi++)
        if (instance_at(device->index, gi, &own) && own.ci >= 0 && !index--) {
            *to = handle_of(device->index, gi);
            return OK;
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, uint *to) { CHECK(device); *to = (uint)gi_of(device); return OK; }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, uint *to) { CHECK(device); *to = 0; return OK; }
