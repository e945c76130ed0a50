/* A scriptable libnvidia-ml.so.1 with the C ABI that nvidia-ml-py 13 uses. No NVIDIA code, no header of theirs.
 *
 * FAKE_NVML_SCENARIO  file to read when the library is loaded (none: one idle GPU)
 * FAKE_NVML_TRACE     file to append one line per call to: "FUNCTION GPU MICROSECONDS" (GPU "-" for calls without a
 *                     device; microseconds of CLOCK_MONOTONIC)
 *
 * Scenario, one statement a line, "#" comments:
 *
 *     [at MS] [gpu N|*] KEY=VALUE [KEY=VALUE ...]
 *
 * A statement holds from MS after loading (default 0); of several that hold, the one with the latest MS wins, then
 * the one further down. VALUE may be quoted ("NVIDIA H200") and may contain \xHH bytes.
 * NUMBER is 42, -1, 12.5, nan, a list 9,9,0 (one per call, the last stays), A..B/MS (a triangle wave)
 * or A@B (a counter: A at loading, growing by B a second).
 *
 *   node:     gpus=N driver=TEXT nvml=TEXT cuda=13000  kernel=N (version of the kernel module; all calls of a library
 *             of another version, 580 unless built otherwise, answer 18)
 *             reloads=N (times that the driver was reloaded; after another one all calls answer 1 until NVML is initialised
 *             anew, which it is only once every nvmlInit was made up for by an nvmlShutdown: NVML counts references)
 *   identity: name uuid pci=TEXT  arch=9 cc=9.0 total reserved=BYTES limit=MILLIWATT maxsm=MHZ gpm=0|1
 *   mig:      mig=1 there=0|1 slices=N  see fake_mig.c: GPU g has its instance in slot s under the number 100*(g+1)+s
 *   readings: util memutil=PCT used=BYTES power=MILLIWATT temp=C sm mem=MHZ reasons=BITS
 *             gpm.ID=NUMBER (percent, MiB/s)  gpmrc.ID=CODE (per-metric return code)
 *             procs=PID:BYTES:KIND,... with BYTES a number or "na", KIND of C, G, M (a client of MPS); procs=none
 *   faults:   rc.FUNCTION=CODE (13 stands for a driver that lacks the call; rc.*=15 for all calls on a GPU)
 *             latency.FUNCTION=MICROSECONDS  hang.FUNCTION=1 (does not return until it is 0)
 *
 * It is strict where the driver is: struct versions (25), calls before nvmlInit or in a forked child (1), foreign
 * handles and GPM samples in the wrong order (2). GPM samples closer than 100 ms give zeros, NaN for DRAM and
 * return code 0, as measured on an H200. A mistake in a scenario ends the process with one line on stderr.
 *
 * Lines that are appended to the scenario file later hold from the next call on: a test steers a daemon that way.
 *
 * For tests in the same process: fake_nvml_set(line) adds a statement now, fake_nvml_advance(ms) moves its clock,
 * fake_nvml_release() lets hanging calls return 999.
 */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef LIBRARY_VERSION
#define LIBRARY_VERSION 580
#endif

enum { MAX_GPUS = 16, SLOTS = 8, MAX_STATEMENTS = 4096, NODE = -1, ANY = -2 };
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, MISMATCH = 18, VERSION = 25, UNKNOWN = 999 };

typedef struct { double at_ms; int gpu; char *key, *value; unsigned uses; } Statement;
typedef struct { int index; } Gpu;
typedef struct { unsigned magic; int gpu; double at_ms; } Sample;

static Statement statements[MAX_STATEMENTS];
static int count, initialised, reloads_seen;
static pid_t owner;
static Gpu gpus[MAX_GPUS * (1 + SLOTS)]; /* the whole GPUs, then the MIG instances of each */
static double loaded_ms, advanced_ms;
static volatile int released;
static FILE *trace, *scenario;
static long scenario_read;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const FUNCTIONS =
    " nvmlInitWithFlags nvmlShutdown nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion"
    " nvmlSystemGetCudaDriverVersion nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetName"
    " nvmlDeviceGetUUID nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2"
    " nvmlDeviceGetUtilizationRates nvmlDeviceGetPowerUsage nvmlDeviceGetEnforcedPowerLimit"
    " nvmlDeviceGetTemperatureV nvmlDeviceGetTemperature nvmlDeviceGetClockInfo nvmlDeviceGetMaxClockInfo"
    " nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons"
    " nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3"
    " nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v2"
    " nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetConfComputeMemSizeInfo"
    " nvmlDeviceGetRunningProcessDetailList"
    " nvmlDeviceGetArchitecture nvmlDeviceGetCudaComputeCapability nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc"
    " nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmMetricsGet nvmlDeviceGetPcieThroughput nvmlDeviceGetMigMode"
    " nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetAttributes_v2"
    " nvmlDeviceGetAddressingMode"
    " nvmlDeviceGetFieldValues nvmlDeviceGetSamples nvmlDeviceGetProcessesUtilizationInfo"
    " nvmlDeviceGetProcessUtilization nvmlEventSetCreate nvmlEventSetFree nvmlDeviceGetSupportedEventTypes"
    " nvmlDeviceRegisterEvents nvmlEventSetWait_v2 nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization"
    " nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization nvmlDeviceGetPerformanceState"
    " nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkGeneration"
    " nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetPersistenceMode nvmlDeviceGetComputeMode"
    " nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetVirtualizationMode"
    " nvmlDeviceGetNumFans nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetEccMode nvmlDeviceGetMarginTemperature"
    " nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetRemappedRows nvmlSystemGetConfComputeState nvmlDeviceGetCpuAffinity"
    " nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetP2PStatus nvmlDeviceGetTemperatureThreshold"
    " nvmlDeviceGetNvLinkState nvmlDeviceGetGpuFabricInfoV * ";
static const char *const KEYS =
    " gpus driver nvml cuda kernel reloads name uuid pci arch cc total reserved limit maxsm gpm util memutil used power temp sm mem"
    " reasons procs mig there slices addressing"
    " clock frozen ring putil events event bar1 bar1used margin remap ecc fans fan pstate enc dec jpg ofa pciegen pciewidth"
    " pciegenmax pciewidthmax persistence computemode reasonsup energy virt conf affinity topo p2p graphics video fabric ";
static const char *const NUMBERED = " gpm gpmrc fi firc fitype ringms ringcap threshold link ";

/* --- scenario --- */

/* What held at an instant of the past, for samples that the driver took then; negative: now. */
static __thread double at_instant = -1;
static int frozen; /* frozen=1 in a scenario: time moves by fake_nvml_advance only, whatever the machine is busy with */

static double now_ms(void) {
    struct timespec t;
    if (at_instant >= 0) return at_instant;
    if (frozen) return advanced_ms;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6 - loaded_ms + advanced_ms;
}

static void refuse(int line, const char *what, const char *token) {
    fprintf(stderr, "fake_nvml: line %d of the scenario: %s: %s\n", line, what, token);
    _exit(64);
}

static int listed(const char *list, const char *word) {
    char padded[160];
    snprintf(padded, sizeof padded, " %s ", word);
    return strstr(list, padded) != NULL;
}

static void check_key(int line, const char *key) {
    const char *dot = strchr(key, '.');
    if (!dot ? listed(KEYS, key) : 0) return;
    char family[16];
    snprintf(family, sizeof family, "%.*s", dot ? (int)(dot - key) : 0, key);
    if (dot && listed(NUMBERED, family) && isdigit((unsigned char)dot[1])) return;
    if (dot && (!strncmp(key, "rc.", 3) || !strncmp(key, "latency.", 8) || !strncmp(key, "hang.", 5))
        && listed(FUNCTIONS, dot + 1)) return;
    refuse(line, "unknown key", key);
}

/* The next word at *at, unquoted and unescaped; NULL at the end of the line. */
static char *word(char **at) {
    char *in = *at, *out, *start;
    int quoted = 0;
    while (*in == ' ' || *in == '\t') in++;
    if (!*in || *in == '\n' || *in == '#') return NULL;
    for (start = out = in; *in && *in != '\n' && (quoted || (*in != ' ' && *in != '\t')); in++) {
        if (*in == '"') quoted = !quoted;
        else if (in[0] == '\\' && in[1] == 'x' && isxdigit((unsigned char)in[2]) && isxdigit((unsigned char)in[3])) {
            char hex[3] = {in[2], in[3], 0};
            *out++ = (char)strtol(hex, NULL, 16);
            in += 3;
        } else *out++ = *in;
    }
    *at = *in ? in + 1 : in;
    *out = 0;
    return start;
}

static void add(char *text, int line, double at_ms) {
    int gpu = NODE;
    char *token;
    while ((token = word(&text))) {
        char *equals = strchr(token, '=');
        if (!strcmp(token, "at") && (token = word(&text))) at_ms = atof(token);
        else if (!strcmp(token, "gpu") && (token = word(&text))) gpu = *token == '*' ? ANY : atoi(token);
        else if (!equals) refuse(line, "expected KEY=VALUE", token ? token : "end of line");
        else {
            *equals = 0;
            check_key(line, token);
            if (!strcmp(token, "frozen")) frozen = atoi(equals + 1);
            if (count == MAX_STATEMENTS) refuse(line, "too many statements", token);
            statements[count++] = (Statement){at_ms, gpu, strdup(token), strdup(equals + 1), 0};
        }
    }
}

__attribute__((constructor)) static void load(void) {
    char line[8192];
    const char *path = getenv("FAKE_NVML_SCENARIO"), *log = getenv("FAKE_NVML_TRACE");
    loaded_ms = now_ms();
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i].index = i;
        for (int slot = 0; slot < SLOTS; slot++) gpus[MAX_GPUS + i * SLOTS + slot].index = 100 * (i + 1) + slot;
    }
    if (log && *log) trace = fopen(log, "a");
    if (!path || !*path) return;
    scenario = fopen(path, "re");
    if (!scenario) refuse(0, "cannot open", path);
    for (int number = 1; fgets(line, sizeof line, scenario); number++) add(line, number, 0);
    scenario_read = ftell(scenario);
}

/* Statements that were appended to the scenario file since. */
static void reread(void) {
    char line[8192];
    struct stat now;
    if (!scenario || fstat(fileno(scenario), &now) || now.st_size <= scenario_read) return;
    pthread_mutex_lock(&lock);
    fseek(scenario, scenario_read, SEEK_SET);
    while (fgets(line, sizeof line, scenario) && strchr(line, '\n')) {
        add(line, 0, now_ms());
        scenario_read = ftell(scenario);
    }
    pthread_mutex_unlock(&lock);
}

void fake_nvml_set(const char *line) {
    char *copy = strdup(line);
    pthread_mutex_lock(&lock);
    add(copy, 0, now_ms());
    pthread_mutex_unlock(&lock);
    free(copy);
}

void fake_nvml_advance(double ms) { advanced_ms += ms; }
void fake_nvml_release(void) { released = 1; }

/* The statement for this key that holds now, or NULL. The lock is held. */
static Statement *find(int gpu, const char *key) {
    Statement *best = NULL;
    double now = now_ms();
    for (int i = 0; i < count; i++) {
        Statement *s = &statements[i];
        int fits = s->gpu == gpu || (s->gpu == ANY && gpu >= 0);
        if (fits && s->at_ms <= now && !strcmp(s->key, key) && (!best || s->at_ms >= best->at_ms)) best = s;
    }
    return best;
}

static double parse(Statement *s) {
    char *item = s->value, *wave = strstr(s->value, "..");
    if (wave) {
        double a = atof(s->value), b = atof(wave + 2), period = atof(strchr(wave, '/') ? strchr(wave, '/') + 1 : "1000");
        double phase = fmod(now_ms(), period) / period;
        return a + (b - a) * (phase < 0.5 ? 2 * phase : 2 - 2 * phase);
    }
    if (strchr(s->value, '@')) return atof(s->value) + atof(strchr(s->value, '@') + 1) * now_ms() / 1e3;
    for (unsigned i = s->uses++; i && strchr(item, ','); i--) item = strchr(item, ',') + 1;
    return strtod(item, NULL);
}

static double number(int gpu, const char *key, double otherwise) {
    pthread_mutex_lock(&lock);
    Statement *s = find(gpu, key);
    double value = s ? parse(s) : otherwise;
    pthread_mutex_unlock(&lock);
    return value;
}

static int text(int gpu, const char *key, const char *otherwise, char *out, unsigned size) {
    pthread_mutex_lock(&lock);
    Statement *s = find(gpu, key);
    const char *value = s ? s->value : otherwise;
    int fits = strlen(value) < size;
    if (fits) strcpy(out, value);
    pthread_mutex_unlock(&lock);
    return fits ? OK : TOO_SMALL;
}

/* --- what every call does first: trace, delay, scripted return code --- */

static double fault(int gpu, const char *kind, const char *function) {
    char key[96], all[96];
    snprintf(key, sizeof key, "%s.%s", kind, function);
    snprintf(all, sizeof all, "%s.*", kind);
    double value = number(gpu, key, NAN);
    return isnan(value) && gpu >= 0 ? number(gpu, all, 0) : isnan(value) ? 0 : value;
}

static int enter(int gpu, const char *function) {
    struct timespec nap = {0, 5000000}, t;
    reread();
    if (trace) {
        pthread_mutex_lock(&lock);
        clock_gettime(CLOCK_MONOTONIC, &t);
        long long us = (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000;
        if (gpu >= 0) fprintf(trace, "%s %d %lld\n", function, gpu, us);
        else fprintf(trace, "%s - %lld\n", function, us);
        fflush(trace);
        pthread_mutex_unlock(&lock);
    }
    while (fault(gpu, "hang", function) != 0) {
        if (released) return UNKNOWN;
        nanosleep(&nap, NULL);
        reread();
    }
    double us = fault(gpu, "latency", function);
    if (us > 0) {
        struct timespec delay = {(time_t)(us / 1e6), (long)(fmod(us, 1e6) * 1e3)};
        nanosleep(&delay, NULL);
    }
    if (number(NODE, "kernel", LIBRARY_VERSION) != LIBRARY_VERSION) return MISMATCH;
    if (strcmp(function, "nvmlInitWithFlags") && (!initialised || owner != getpid())) return UNINITIALIZED;
    /* NVML counts references: while one is held, nvmlInit and nvmlShutdown do no more than count. */
    if (!strcmp(function, "nvmlInitWithFlags") || !strcmp(function, "nvmlShutdown"))
        return initialised ? OK : (int)fault(gpu, "rc", function);
    if ((int)number(NODE, "reloads", 0) != reloads_seen) return UNINITIALIZED;
    return (int)fault(gpu, "rc", function);
}

static int gpu_count(void) { return (int)number(NODE, "gpus", 1); }
/* A handle of ours, and of a MIG instance that has not been destroyed. */
static int there(const Gpu *h) {
    if (!h || h < gpus || h >= gpus + MAX_GPUS * (1 + SLOTS)) return 0;
    return h->index < 100 || number(h->index, "there", 0) != 0;
}
/* NVML counts no utilization where MIG is on. */
static int mig(int g) { return g >= 100 || number(g, "mig", 0) != 0; }

#define ENTER(gpu) do { int rc_ = enter(gpu, __func__); if (rc_) return rc_; } while (0)
#define DEVICE(handle) \
    if (!there(handle)) return initialised ? INVALID : UNINITIALIZED; \
    int g = (handle)->index; \
    ENTER(g)
#define VALUE(function, type, key, otherwise) \
    int function(Gpu *h, type *out) { DEVICE(h); *out = (type)number(g, key, otherwise); return OK; }

/* --- node --- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NODE);
    if (!initialised) reloads_seen = (int)number(NODE, "reloads", 0);
    initialised++;
    owner = getpid();
    return OK;
}
int nvmlShutdown(void) { ENTER(NODE); initialised--; return OK; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "fake error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { ENTER(NODE); return text(NODE, "driver", "580.159.04", out, n); }
int nvmlSystemGetNVMLVersion(char *out, unsigned n) { ENTER(NODE); return text(NODE, "nvml", "13.580.159.04", out, n); }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NODE); *out = (int)number(NODE, "cuda", 13000); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(NODE); *out = (unsigned)gpu_count(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **out) {
    if ((int)index >= gpu_count() || index >= MAX_GPUS) return INVALID;
    ENTER((int)index);
    *out = &gpus[index];
    return OK;
}

/* --- identity --- */

int nvmlDeviceGetName(Gpu *h, char *out, unsigned n) {
    DEVICE(h);
    return text(g, "name", g < 100 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb", out, n);
}
int nvmlDeviceGetUUID(Gpu *h, char *out, unsigned n) {
    char uuid[64];
    DEVICE(h);
    snprintf(uuid, sizeof uuid, "%s-fa4e0000-0000-4000-8000-%012d", g < 100 ? "GPU" : "MIG", g);
    return text(g, "uuid", uuid, out, n);
}
typedef struct { char legacy[16]; unsigned domain, bus, device, ids, subsystem; char bus_id[32]; } PciInfo;
int nvmlDeviceGetPciInfo_v3(Gpu *h, PciInfo *out) {
    char id[32];
    DEVICE(h);
    memset(out, 0, sizeof *out);
    snprintf(id, sizeof id, "00000000:%02X:00.0", 0x61 + g);
    return text(g, "pci", id, out->bus_id, sizeof out->bus_id);
}
VALUE(nvmlDeviceGetArchitecture, unsigned, "arch", 9)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit", 700000)
int nvmlDeviceGetMaxClockInfo(Gpu *h, unsigned type, unsigned *out) {
    DEVICE(h);
    *out = type == 1 ? (unsigned)number(g, "maxsm", 1980) : 3201;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Gpu *h, int *major, int *minor) {
    char cc[16];
    DEVICE(h);
    int rc = text(g, "cc", "9.0", cc, sizeof cc);
    return rc ? rc : sscanf(cc, "%d.%d", major, minor) == 2 ? OK : UNKNOWN;
}

/* --- readings --- */

typedef unsigned long long u64;
typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(Gpu *h, Utilization *out) {
    DEVICE(h);
    if (mig(g)) return NOT_SUPPORTED;
    *out = (Utilization){(unsigned)number(g, "util", 0), (unsigned)number(g, "memutil", 0)};
    return OK;
}
static void memory(int g, u64 *total, u64 *reserved, u64 *used) {
    *total = (u64)number(g, "total", 150754820096.0);
    *reserved = (u64)number(g, "reserved", 644939776.0);
    *used = (u64)number(g, "used", 0);
}
typedef struct { u64 total, free, used; } MemoryV1;
int nvmlDeviceGetMemoryInfo(Gpu *h, MemoryV1 *out) {
    u64 reserved;
    DEVICE(h);
    memory(g, &out->total, &reserved, &out->used);
    out->used += reserved; /* version 1 counts the driver's share as used */
    out->free = out->total - out->used;
    return OK;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo_v2(Gpu *h, MemoryV2 *out) {
    DEVICE(h);
    if (out->version != 0x02000028) return VERSION;
    memory(g, &out->total, &out->reserved, &out->used);
    out->free = out->total - out->reserved - out->used;
    return OK;
}
VALUE(nvmlDeviceGetPowerUsage, unsigned, "power", 76000)
typedef struct { unsigned version, sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(Gpu *h, Temperature *out) {
    DEVICE(h);
    if (out->version != 0x0100000C) return VERSION;
    out->temperature = (int)number(g, "temp", 28);
    return OK;
}
int nvmlDeviceGetTemperature(Gpu *h, unsigned sensor, unsigned *out) {
    (void)sensor;
    DEVICE(h);
    *out = (unsigned)number(g, "temp", 28);
    return OK;
}
int nvmlDeviceGetClockInfo(Gpu *h, unsigned type, unsigned *out) {
    DEVICE(h);
    static const char *const keys[] = {"graphics", "sm", "mem", "video"};
    *out = (unsigned)number(g, keys[type & 3], type == 2 ? 3201 : 345);
    return OK;
}
VALUE(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons", 1)
VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "reasons", 1)
int nvmlDeviceGetPcieThroughput(Gpu *h, unsigned counter, unsigned *out) {
    (void)counter;
    DEVICE(h);
    *out = 0;
    return OK;
}

/* --- processes: a NULL array asks for the number, and gets 7 with it --- */

typedef struct { unsigned pid; u64 used; unsigned gi, ci; } Process;
#ifndef PROCESS_BYTES
#define PROCESS_BYTES sizeof(Process) /* of an entry of the newest lists: 32 from 535.43 to 535.86 */
#endif
static int processes(int g, unsigned *n, Process *out, char kind, size_t stride) {
    char list[8192], *save = NULL;
    unsigned found = 0;
    if (text(g, "procs", "none", list, sizeof list)) return UNKNOWN;
    for (char *item = strcmp(list, "none") ? strtok_r(list, ",", &save) : NULL; item; item = strtok_r(NULL, ",", &save)) {
        char used[32], kinds[8];
        u64 pid;
        if (sscanf(item, "%llu:%31[^:]:%7s", &pid, used, kinds) != 3) refuse(0, "expected PID:BYTES:KIND", item);
        if (!strchr(kinds, kind)) continue;
        if (out && found < *n)
            *(Process *)((char *)out + found * stride) =
                (Process){(unsigned)pid, strcmp(used, "na") ? strtoull(used, NULL, 10) : ~0ULL, ~0U, ~0U};
        found++;
    }
    int rc = found && (!out || found > *n) ? TOO_SMALL : OK;
    *n = found;
    return rc;
}
#define PROCESSES(function, kind, stride) \
    int function(Gpu *h, unsigned *n, Process *out) { DEVICE(h); return processes(g, n, out, kind, stride); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C', PROCESS_BYTES)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C', sizeof(Process))
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', PROCESS_BYTES)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', sizeof(Process))
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', PROCESS_BYTES)
/* Never called: what a driver has of these tells the length of its entries. */
int nvmlDeviceGetConfComputeMemSizeInfo(Gpu *h, void *out) { (void)out; DEVICE(h); return NOT_SUPPORTED; }
int nvmlDeviceGetRunningProcessDetailList(Gpu *h, void *out) { (void)out; DEVICE(h); return NOT_SUPPORTED; }

/* --- GPM --- */

enum { SAMPLE_MAGIC = 0x47504d21 };
typedef struct { unsigned version, supported; } Support;
int nvmlGpmQueryDeviceSupport(Gpu *h, Support *out) {
    DEVICE(h);
    if (out->version != 1) return VERSION;
    out->supported = number(g, "gpm", 1) != 0;
    return OK;
}
int nvmlGpmSampleAlloc(Sample **out) {
    ENTER(NODE);
    *out = calloc(1, sizeof **out);
    (*out)->magic = SAMPLE_MAGIC;
    (*out)->gpu = -1;
    return OK;
}
int nvmlGpmSampleFree(Sample *sample) {
    ENTER(NODE);
    if (!sample || sample->magic != SAMPLE_MAGIC) return INVALID;
    sample->magic = 0; /* never freed: a use after this must be seen, not crash */
    return OK;
}
int nvmlGpmSampleGet(Gpu *h, Sample *sample) {
    DEVICE(h);
    if (!sample || sample->magic != SAMPLE_MAGIC) return INVALID;
    if (number(g, "gpm", 1) == 0) return NOT_SUPPORTED;
    sample->gpu = g;
    sample->at_ms = now_ms();
    return OK;
}
typedef struct { unsigned id; int rc; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, n; Sample *first, *second; Metric metrics[]; } MetricsGet;
int nvmlGpmMetricsGet(MetricsGet *get) {
    Sample *a = get->first, *b = get->second;
    ENTER(a && a->magic == SAMPLE_MAGIC ? a->gpu : NODE);
    if (get->version != 1) return VERSION;
    if (!a || !b || a->magic != SAMPLE_MAGIC || b->magic != SAMPLE_MAGIC) return INVALID;
    if (a->gpu < 0 || a->gpu != b->gpu || a->at_ms >= b->at_ms) return INVALID;
    int too_close = b->at_ms - a->at_ms < 100;
    for (unsigned i = 0; i < get->n; i++) {
        char value[16], rc[16];
        Metric *m = &get->metrics[i];
        snprintf(value, sizeof value, "gpm.%u", m->id);
        snprintf(rc, sizeof rc, "gpmrc.%u", m->id);
        m->rc = (int)number(a->gpu, rc, m->id >= 1 && m->id <= 209 ? OK : NOT_SUPPORTED);
        m->value = m->rc ? 0 : too_close ? (m->id == 10 ? NAN : 0) : number(a->gpu, value, 0);
    }
    return OK;
}

#include "fake_mig.c"
#include "fake_telemetry.c"
#include "fake_peers.c"
