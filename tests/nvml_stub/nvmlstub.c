/*
 * Stub of libnvidia-ml.so.1, controlled by a text file.
 *
 * NVMLSTUB_STATE names a file of key=value lines ('#' starts a comment line). It is opened and
 * read on every call, so a test changes what NVML reports by replacing the file (write a
 * temporary file, then rename it over). Without a file or the variable, init returns DRIVER_NOT_LOADED.
 *
 * Global keys
 *   device_count, driver_version, nvml_version, cuda_version
 *   trace                   path: every called C function appends its name, one per line
 *   proc_stride             bytes per entry of the process list _v3, 24 by default (32 as in the drivers 535.43 to 535.86)
 *   field_default           nvmlReturn of a field id without a key, 3 by default
 *   events=N:XID,N:XID,...  events of device N, oldest first; add at the end. A set reports events added after its creation.
 * Per device N
 *   gpuN.uuid, .name, .temp, .margin, .clock.T, .max_clock.T (T: 0 graphics 1 SM 2 mem 3 video),
 *   .power_mw, .power_limit_mw, .power_requested_mw, .energy_mj, .mem_total, .mem_reserved, .mem_free, .mem_used,
 *   .util_gpu, .util_mem, .reasons (0x.. allowed), .ecc, .mig (0 or 1), .procs=pid:bytes|na[:gi:ci],...
 *   gpuN.field.ID=TYPE:VALUE   TYPE double|uint|ulong|ull|sll|int|ushort, or err:CODE
 *   gpuN.event_types        mask of the events that can be registered for (8: XIDs)
 *   gpuN.lost=1                every call on that device returns GPU_IS_LOST
 * Faults (F is a C function name as exported, or * for all; gpuN. in front limits it to a device)
 *   [gpuN.]fail.F=CODE      return CODE and write nothing
 *   [gpuN.]hang.F=SECONDS   sleep first; ends when the key is removed or smaller
 * A value without a key is NVML_ERROR_NOT_SUPPORTED, as on a board without that sensor.
 * build.sh can leave functions out of the library at link time.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef WITH_REAL_NVML_H /* let the compiler compare every prototype and struct with NVIDIA's header */
#include <nvml.h>
#else
typedef int nvmlReturn_t;
typedef unsigned int nvmlValueType_t, nvmlTemperatureSensors_t, nvmlClockType_t, nvmlEnableState_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
enum {
    NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9, NVML_ERROR_TIMEOUT = 10, NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};
enum {
    NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_LONG,
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, NVML_VALUE_TYPE_SIGNED_LONG_LONG,
    NVML_VALUE_TYPE_SIGNED_INT, NVML_VALUE_TYPE_UNSIGNED_SHORT,
};
typedef struct nvmlEventSet_st *nvmlEventSet_t;
enum { nvmlEventTypeXidCriticalError = 8 };
typedef struct {
    nvmlDevice_t device; unsigned long long eventType, eventData; unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef union {
    double dVal; int siVal; unsigned int uiVal; unsigned long ulVal; unsigned long long ullVal;
    signed long long sllVal; unsigned short usVal;
} nvmlValue_t;
typedef struct {
    unsigned int fieldId, scopeId; long long timestamp, latencyUsec;
    nvmlValueType_t valueType; nvmlReturn_t nvmlReturn; nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int version; nvmlTemperatureSensors_t sensorType; int temperature; } nvmlTemperature_t;
typedef struct { unsigned int version; int marginTemperature; } nvmlMarginTemperature_t;
typedef struct {
    unsigned int pid; unsigned long long usedGpuMemory; unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;
#define nvmlProcessInfo_t nvmlProcessInfo_v2_t
#endif

#define VERSION(type, n) ((unsigned int)(sizeof(type) | ((n) << 24)))
#define MAX_DEVICES 16
#define VALUE 4096

static atomic_int init_count;
static char device_slots[MAX_DEVICES]; /* a handle is the address of a slot: a full 64-bit pointer */

/* ---- state file ---- */

static int lookup(const char *key, char *out, size_t size)
{
    const char *path = getenv("NVMLSTUB_STATE");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[VALUE];
    size_t n = strlen(key);
    int found = 0;

    if (!f)
        return -1;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && line[n] == '=') { /* last one wins */
            line[strcspn(line, "\r\n")] = 0;
            snprintf(out, size, "%s", line + n + 1);
            found = 1;
        }
    fclose(f);
    return found;
}

/* key of device dev, or a global key when dev < 0 */
static int lookup_for(int dev, const char *prefix, const char *name, char *out, size_t size)
{
    char key[256];

    if (dev >= 0)
        snprintf(key, sizeof key, "gpu%d.%s%s", dev, prefix, name);
    else
        snprintf(key, sizeof key, "%s%s", prefix, name);
    return lookup(key, out, size);
}

static int fault(int dev, const char *kind, const char *fn, char *out, size_t size)
{
    return (dev >= 0 && (lookup_for(dev, kind, fn, out, size) > 0 || lookup_for(dev, kind, "*", out, size) > 0))
        || lookup_for(-1, kind, fn, out, size) > 0 || lookup_for(-1, kind, "*", out, size) > 0;
}

static double now(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* The start of every entry point: trace, hang, injected error, not initialised. */
static nvmlReturn_t enter(const char *fn, int dev, int needs_init)
{
    char v[VALUE];
    double start = now(CLOCK_MONOTONIC);

    if (lookup("trace", v, sizeof v) > 0) {
        FILE *f = fopen(v, "ae");
        if (f) {
            fprintf(f, "%s\n", fn);
            fclose(f);
        }
    }
    while (fault(dev, "hang.", fn, v, sizeof v) && now(CLOCK_MONOTONIC) - start < atof(v)) {
        struct timespec slice = {0, 20 * 1000 * 1000};
        nanosleep(&slice, NULL); /* a signal only ends the slice, not the hang */
    }
    if (fault(dev, "fail.", fn, v, sizeof v))
        return (nvmlReturn_t)atoi(v);
    if (needs_init && atomic_load(&init_count) == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (dev >= 0 && lookup_for(dev, "", "lost", v, sizeof v) > 0 && atoi(v))
        return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

static int device_count(void)
{
    char v[VALUE];
    int n = lookup("device_count", v, sizeof v) > 0 ? atoi(v) : 0;

    return n < 0 ? 0 : n > MAX_DEVICES ? MAX_DEVICES : n;
}

static int index_of(nvmlDevice_t device)
{
    char *slot;

    memcpy(&slot, &device, sizeof slot); /* a plain pointer in C, a one-pointer struct in some headers */
    return slot >= device_slots && slot < device_slots + device_count() ? (int)(slot - device_slots) : -1;
}

#define ENTER(fn) do { nvmlReturn_t r_ = enter(fn, -1, 1); if (r_) return r_; } while (0)
#define ENTER_DEVICE(fn, out) \
    int dev = index_of(device); \
    do { nvmlReturn_t r_ = enter(fn, dev, 1); if (r_) return r_; \
         if (dev < 0 || !(out)) return NVML_ERROR_INVALID_ARGUMENT; } while (0)

static nvmlReturn_t number(int dev, const char *name, unsigned long long *out)
{
    char v[VALUE];

    if (lookup_for(dev, "", name, v, sizeof v) <= 0 || !*v)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = strtoull(v, NULL, 0); /* a minus sign wraps, so a cast to int is correct */
    return NVML_SUCCESS;
}

static nvmlReturn_t text(int dev, const char *name, char *out, unsigned int length)
{
    char v[VALUE];

    if (lookup_for(dev, "", name, v, sizeof v) <= 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(v) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, v);
    return NVML_SUCCESS;
}

/* ---- library ---- */

static nvmlReturn_t init(const char *fn)
{
    nvmlReturn_t r = enter(fn, -1, 0);
    char v[VALUE];

    if (r)
        return r;
    if (lookup("device_count", v, sizeof v) < 0)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    atomic_fetch_add(&init_count, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; return init("nvmlInitWithFlags"); }
nvmlReturn_t nvmlInit_v2(void) { return init("nvmlInit_v2"); }

nvmlReturn_t nvmlShutdown(void)
{
    ENTER("nvmlShutdown");
    atomic_fetch_sub(&init_count, 1);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static _Thread_local char message[32];

    snprintf(message, sizeof message, "stub error %d", (int)result);
    return message;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER("nvmlSystemGetDriverVersion");
    return version ? text(-1, "driver_version", version, length) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER("nvmlSystemGetNVMLVersion");
    return version ? text(-1, "nvml_version", version, length) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t cuda_version(int *out)
{
    unsigned long long n = 0;
    nvmlReturn_t r = out ? number(-1, "cuda_version", &n) : NVML_ERROR_INVALID_ARGUMENT;

    if (!r)
        *out = (int)n;
    return r;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { ENTER("nvmlSystemGetCudaDriverVersion"); return cuda_version(out); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER("nvmlSystemGetCudaDriverVersion_v2"); return cuda_version(out); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER("nvmlDeviceGetCount_v2");
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned int)device_count();
    return NVML_SUCCESS;
}

static nvmlReturn_t handle(int dev, nvmlDevice_t *device)
{
    char *slot = &device_slots[dev];

    memcpy(device, &slot, sizeof slot);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER("nvmlDeviceGetHandleByIndex_v2");
    if (!device || index >= (unsigned int)device_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return handle((int)index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char v[VALUE];

    ENTER("nvmlDeviceGetHandleByUUID");
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int dev = 0; dev < device_count(); dev++)
        if (lookup_for(dev, "", "uuid", v, sizeof v) > 0 && !strcmp(v, uuid))
            return handle(dev, device);
    return NVML_ERROR_NOT_FOUND;
}

/* ---- device: strings and plain numbers ---- */

#define TEXT_GETTER(fn, key) \
    nvmlReturn_t fn(nvmlDevice_t device, char *out, unsigned int length) \
    { ENTER_DEVICE(#fn, out); return text(dev, key, out, length); }
#define NUMBER_GETTER(fn, key, type) \
    nvmlReturn_t fn(nvmlDevice_t device, type *out) \
    { unsigned long long n; nvmlReturn_t r; ENTER_DEVICE(#fn, out); \
      r = number(dev, key, &n); if (!r) *out = (type)n; return r; }

TEXT_GETTER(nvmlDeviceGetUUID, "uuid")
TEXT_GETTER(nvmlDeviceGetName, "name")
NUMBER_GETTER(nvmlDeviceGetPowerUsage, "power_mw", unsigned int)
NUMBER_GETTER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw", unsigned int)
NUMBER_GETTER(nvmlDeviceGetPowerManagementLimit, "power_requested_mw", unsigned int)
NUMBER_GETTER(nvmlDeviceGetTotalEnergyConsumption, "energy_mj", unsigned long long)
NUMBER_GETTER(nvmlDeviceGetCurrentClocksEventReasons, "reasons", unsigned long long)
NUMBER_GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons", unsigned long long)

/* the pending mode is the current one; no key: not supported */
#define MODE_GETTER(fn, key, type) \
    nvmlReturn_t fn(nvmlDevice_t device, type *current, type *pending) \
    { unsigned long long n; nvmlReturn_t r; ENTER_DEVICE(#fn, current && pending); \
      r = number(dev, key, &n); if (!r) *current = *pending = (type)n; return r; }

MODE_GETTER(nvmlDeviceGetEccMode, "ecc", nvmlEnableState_t)
MODE_GETTER(nvmlDeviceGetMigMode, "mig", unsigned int)

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out)
{
    ENTER_DEVICE("nvmlDeviceGetIndex", out);
    *out = (unsigned int)dev;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(int dev, const char *prefix, unsigned int type, unsigned int *out)
{
    char name[32];
    unsigned long long n = 0;
    nvmlReturn_t r;

    if (type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(name, sizeof name, "%s.%u", prefix, type);
    r = number(dev, name, &n);
    if (!r)
        *out = (unsigned int)n;
    return r;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out)
{ ENTER_DEVICE("nvmlDeviceGetClockInfo", out); return clock_of(dev, "clock", type, out); }

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out)
{ ENTER_DEVICE("nvmlDeviceGetMaxClockInfo", out); return clock_of(dev, "max_clock", type, out); }

/* ---- device: temperatures ---- */

static nvmlReturn_t temperature(int dev, unsigned int sensor, int *out)
{
    unsigned long long n = 0;
    nvmlReturn_t r = sensor == 0 ? number(dev, "temp", &n) : NVML_ERROR_INVALID_ARGUMENT;

    if (!r)
        *out = (int)n;
    return r;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *t)
{
    ENTER_DEVICE("nvmlDeviceGetTemperatureV", t);
    if (t->version != VERSION(nvmlTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return temperature(dev, t->sensorType, &t->temperature);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
    ENTER_DEVICE("nvmlDeviceGetTemperature", out);
    return temperature(dev, sensor, (int *)out);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *t)
{
    unsigned long long n = 0;
    nvmlReturn_t r;

    ENTER_DEVICE("nvmlDeviceGetMarginTemperature", t);
    if (t->version != VERSION(nvmlMarginTemperature_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    r = number(dev, "margin", &n);
    if (!r)
        t->marginTemperature = (int)n;
    return r;
}

/* ---- device: memory, utilisation ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
    ENTER_DEVICE("nvmlDeviceGetMemoryInfo_v2", m);
    if (m->version != VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return number(dev, "mem_total", &m->total) || number(dev, "mem_reserved", &m->reserved)
        || number(dev, "mem_free", &m->free) || number(dev, "mem_used", &m->used)
        ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
    unsigned long long reserved = 0;

    ENTER_DEVICE("nvmlDeviceGetMemoryInfo", m);
    if (number(dev, "mem_total", &m->total) || number(dev, "mem_free", &m->free) || number(dev, "mem_used", &m->used))
        return NVML_ERROR_NOT_SUPPORTED;
    number(dev, "mem_reserved", &reserved);
    m->used += reserved; /* v1 counts the reserved part as used */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
    unsigned long long gpu = 0, memory = 0;

    ENTER_DEVICE("nvmlDeviceGetUtilizationRates", u);
    if (number(dev, "util_gpu", &gpu) || number(dev, "util_mem", &memory))
        return NVML_ERROR_NOT_SUPPORTED;
    u->gpu = (unsigned int)gpu;
    u->memory = (unsigned int)memory;
    return NVML_SUCCESS;
}

/* ---- device: field values ---- */

static nvmlReturn_t field(int dev, nvmlFieldValue_t *f)
{
    static const char *const types[] = {"double", "uint", "ulong", "ull", "sll", "int", "ushort"};
    char v[VALUE], name[32], *value;
    unsigned int type;

    snprintf(name, sizeof name, "field.%u", f->fieldId);
    if (lookup_for(dev, "", name, v, sizeof v) <= 0 || !(value = strchr(v, ':')))
        return lookup("field_default", v, sizeof v) > 0 ? (nvmlReturn_t)atoi(v) : NVML_ERROR_NOT_SUPPORTED;
    *value++ = 0;
    if (!strcmp(v, "err"))
        return (nvmlReturn_t)atoi(value);
    for (type = 0; type < 7 && strcmp(v, types[type]); type++)
        ;
    f->valueType = (nvmlValueType_t)type;
    switch (type) {
    case NVML_VALUE_TYPE_DOUBLE: f->value.dVal = strtod(value, NULL); break;
    case NVML_VALUE_TYPE_UNSIGNED_INT: f->value.uiVal = (unsigned int)strtoul(value, NULL, 0); break;
    case NVML_VALUE_TYPE_UNSIGNED_LONG: f->value.ulVal = strtoul(value, NULL, 0); break;
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: f->value.ullVal = strtoull(value, NULL, 0); break;
    case NVML_VALUE_TYPE_SIGNED_LONG_LONG: f->value.sllVal = strtoll(value, NULL, 0); break;
    case NVML_VALUE_TYPE_SIGNED_INT: f->value.siVal = (int)strtol(value, NULL, 0); break;
    case NVML_VALUE_TYPE_UNSIGNED_SHORT: f->value.usVal = (unsigned short)strtoul(value, NULL, 0); break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER_DEVICE("nvmlDeviceGetFieldValues", values);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)(now(CLOCK_REALTIME) * 1e6);
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = field(dev, &values[i]);
    }
    return NVML_SUCCESS; /* also when single fields failed */
}

/* ---- device: processes ---- */

static nvmlReturn_t processes(int dev, unsigned int *count, nvmlProcessInfo_v2_t *infos, unsigned long long stride)
{
    char v[VALUE], *item, *save = NULL;
    unsigned int room = *count, n = 0;

    if (lookup_for(dev, "", "procs", v, sizeof v) <= 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (item = strtok_r(v, ",", &save); item; item = strtok_r(NULL, ",", &save), n++) {
        char used[32] = "";
        nvmlProcessInfo_v2_t p = {0};
        p.gpuInstanceId = p.computeInstanceId = 0xFFFFFFFFu;
        if (!infos || n >= room)
            continue;
        sscanf(item, "%u:%31[^:]:%u:%u", &p.pid, used, &p.gpuInstanceId, &p.computeInstanceId);
        p.usedGpuMemory = strcmp(used, "na") ? strtoull(used, NULL, 0) : ~0ull;
        memcpy((char *)infos + n * stride, &p, sizeof p);
    }
    *count = n;
    return n > (infos ? room : 0) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    unsigned long long stride = sizeof *infos;

    ENTER_DEVICE("nvmlDeviceGetComputeRunningProcesses_v3", count);
    number(-1, "proc_stride", &stride);
    return processes(dev, count, (nvmlProcessInfo_v2_t *)infos, stride);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{ ENTER_DEVICE("nvmlDeviceGetComputeRunningProcesses_v2", count); return processes(dev, count, infos, sizeof *infos); }

/* ---- events ---- */

#define MAX_SETS 8
static struct { int used, delivered; unsigned int devices; } sets[MAX_SETS]; /* a handle is the address of one */

static int set_of(nvmlEventSet_t set)
{
    for (int i = 0; i < MAX_SETS; i++) {
        void *slot = &sets[i];
        if (sets[i].used && !memcmp(&slot, &set, sizeof slot))
            return i;
    }
    return -1;
}

/* finds the event after the first `skip`; returns their number */
static int reported(int skip, int *dev, unsigned long long *xid)
{
    char v[VALUE], *item, *save = NULL;
    int n = 0;

    if (lookup("events", v, sizeof v) <= 0)
        return 0;
    for (item = strtok_r(v, ",", &save); item; item = strtok_r(NULL, ",", &save), n++)
        if (n == skip)
            sscanf(item, "%d:%llu", dev, xid);
    return n;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    int dev = 0;
    unsigned long long xid = 0;

    ENTER("nvmlEventSetCreate");
    for (int i = 0; set && i < MAX_SETS; i++)
        if (!sets[i].used) {
            void *slot = &sets[i];
            sets[i].used = 1;
            sets[i].devices = 0;
            sets[i].delivered = reported(-1, &dev, &xid);
            memcpy(set, &slot, sizeof slot);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER("nvmlEventSetFree");
    if (set_of(set) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    sets[set_of(set)].used = 0;
    return NVML_SUCCESS;
}

NUMBER_GETTER(nvmlDeviceGetSupportedEventTypes, "event_types", unsigned long long)

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    unsigned long long offered = 0;

    ENTER_DEVICE("nvmlDeviceRegisterEvents", set_of(set) >= 0);
    if (number(dev, "event_types", &offered) || types & ~offered)
        return NVML_ERROR_NOT_SUPPORTED;
    sets[set_of(set)].devices |= 1u << dev;
    return NVML_SUCCESS;
}

static nvmlReturn_t next_event(nvmlEventSet_t set, nvmlDevice_t *device, unsigned long long *type, unsigned long long *data)
{
    int i = set_of(set), dev = 0;

    if (i < 0 || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    while (sets[i].delivered < reported(sets[i].delivered, &dev, data)) {
        sets[i].delivered++;
        if (sets[i].devices & 1u << dev) {
            *type = nvmlEventTypeXidCriticalError;
            return handle(dev, device);
        }
    }
    return NVML_ERROR_TIMEOUT; /* at once, without waiting */
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *e, unsigned int timeout_ms)
{
    (void)timeout_ms;
    ENTER("nvmlEventSetWait_v2");
    if (e)
        e->gpuInstanceId = e->computeInstanceId = 0xFFFFFFFFu;
    return e ? next_event(set, &e->device, &e->eventType, &e->eventData) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *e, unsigned int timeout_ms) /* the last two members untouched */
{
    (void)timeout_ms;
    ENTER("nvmlEventSetWait");
    return e ? next_event(set, &e->device, &e->eventType, &e->eventData) : NVML_ERROR_INVALID_ARGUMENT;
}
