/* Slow readings, sample buffers, process utilization and events of the fake, a part of fake_nvml.c. Keys:
 *
 *   node:     frozen=1       the driver's time moves only by fake_nvml_advance
 *             clock=MS       added to the driver's clock: a jump is "at 5000 clock=-3600000"
 *   fields:   fi.ID=NUMBER   value of a field of nvmlDeviceGetFieldValues; without it the entry is NOT_SUPPORTED
 *             fi.ID.SCOPE    for a scope that is neither 0 nor "all links"
 *             fitype.ID=N    valueType of the entry (3, unsigned 64 bits); firc.ID=CODE  its return code
 *   rings:    ring=0|1       samples are taken (an idle GPU's buffer goes dark); ringms.TYPE ringcap.TYPE: interval and
 *             length, 20 ms and 119 for power (0), 200 ms and 71 for utilization (1); the values are power and util as
 *             they were at each instant
 *   processes: putil=PID:SM:MEM[:AGE_MS],...  or putil=none
 *   events:   events=BITS that the GPU supports (65439); event=TYPE:DATA, told once from its time on
 *   others:   bar1 bar1used=BYTES margin=C remap=CORR:UNC:PENDING:FAILED ecc=0|1 fans=N fan=PCT pstate enc dec jpg ofa
 *             pciegen pciewidth pciegenmax pciewidthmax persistence computemode reasonsup=BITS energy=MILLIJOULE virt
 *             conf=0|1 affinity=WORD topo=LEVEL p2p=STATUS graphics video=MHZ fabric=STATE:STATUS:HEALTH
 *             threshold.TYPE=C link.N=0|1 (state of an NVLink before Hopper); without them NOT_SUPPORTED
 *
 * Asked without a key, what an H200 does not have is NOT_SUPPORTED, and the rest has the value of an idle one.
 */

static u64 stamp_us(double ms) {
    at_instant = ms;
    double offset = number(NODE, "clock", 0);
    at_instant = -1;
    return 1700000000000000ULL + (u64)((ms + offset) * 1000 + 0.5);
}

/* --- field values --- */

typedef struct { unsigned id, scope; long long timestamp, latency; int type, rc; union { double d; unsigned ui; u64 ull; long long sll; int si; unsigned short us; } value; } FieldValue;
int nvmlDeviceGetFieldValues(Gpu *h, int n, FieldValue *values) {
    DEVICE(h);
    if (n <= 0 || !values) return INVALID;
    for (int i = 0; i < n; i++) {
        char key[48], rc[48], type[48];
        FieldValue *f = &values[i];
        if (f->scope == 0 || f->scope == 0xFFFFFFFF) snprintf(key, sizeof key, "fi.%u", f->id);
        else snprintf(key, sizeof key, "fi.%u.%u", f->id, f->scope);
        snprintf(rc, sizeof rc, "firc.%u", f->id);
        snprintf(type, sizeof type, "fitype.%u", f->id);
        double value = number(g, key, NAN);
        f->rc = (int)number(g, rc, isnan(value) ? NOT_SUPPORTED : OK);
        f->type = (int)number(g, type, 3);
        f->timestamp = (long long)stamp_us(now_ms());
        f->value.ull = 0xdeadbeefdeadbeefULL; /* what is not written is garbage, as in the driver */
        if (f->rc) continue;
        if (f->type == 0 && f->id == 82) f->value.ui = (unsigned)value; /* driver 545: says double, writes an integer */
        else if (f->type == 0) f->value.d = value;
        else if (f->type == 1) f->value.ui = (unsigned)(long long)value;
        else if (f->type == 4) f->value.sll = (long long)value;
        else if (f->type == 5) f->value.si = (int)value;
        else f->value.ull = (u64)value;
    }
    return OK;
}

/* --- sample buffers --- */

typedef struct { u64 stamp; union { double d; unsigned ui; u64 ull; } value; } RingSample;
int nvmlDeviceGetSamples(Gpu *h, unsigned type, u64 seen, unsigned *value_type, unsigned *n, RingSample *out) {
    char ms_key[24], cap_key[24];
    DEVICE(h);
    snprintf(ms_key, sizeof ms_key, "ringms.%u", type);
    snprintf(cap_key, sizeof cap_key, "ringcap.%u", type);
    double every_ms = number(g, ms_key, type == 0 ? 20 : type <= 2 ? 200 : 0);
    long cap = (long)number(g, cap_key, type == 0 ? 119 : 71);
    if (type > 9 || !n || !value_type || (out && !*n)) return INVALID;
    if (every_ms <= 0) return NOT_FOUND;
    *value_type = 1;
    if (!out) { *n = (unsigned)cap; return OK; }
    long newest = (long)(now_ms() / every_ms), found = 0;
    /* The ring holds the last samples that were taken, however long ago: a dark time in between takes no room. */
    long held[4096], kept = 0;
    for (long k = newest; k >= 1 && kept < cap && newest - k < 100000; k--) {
        at_instant = (double)k * every_ms;
        int taken = number(g, "ring", 1) != 0;
        at_instant = -1;
        if (taken) held[kept++] = k;
    }
    while (kept-- > 0) {
        double at = (double)held[kept] * every_ms;
        u64 stamp = stamp_us(at);
        if (stamp <= seen || found >= (long)*n) continue;
        at_instant = at;
        out[found].value.ull = 0;
        out[found].value.ui = (unsigned)number(g, type == 0 ? "power" : type == 1 ? "util" : "memutil", type == 0 ? 76000 : 0);
        at_instant = -1;
        out[found++].stamp = stamp;
    }
    *n = (unsigned)found;
    return found ? OK : NOT_FOUND;
}

/* --- utilization of processes --- */

typedef struct { u64 stamp; unsigned pid, sm, mem, enc, dec, jpg, ofa; } ProcessUtil;
static int process_utils(int g, u64 seen, unsigned *n, ProcessUtil *out) {
    char list[8192], *save = NULL;
    unsigned found = 0, room = out ? *n : 0;
    if (text(g, "putil", "none", list, sizeof list)) return UNKNOWN;
    for (char *item = strcmp(list, "none") ? strtok_r(list, ",", &save) : NULL; item; item = strtok_r(NULL, ",", &save)) {
        ProcessUtil p = {0};
        double age = 0;
        if (sscanf(item, "%u:%u:%u:%lf", &p.pid, &p.sm, &p.mem, &age) < 3) refuse(0, "expected PID:SM:MEM[:AGE]", item);
        p.stamp = stamp_us(floor(now_ms() / 20) * 20 - age);
        if (p.stamp <= seen) continue;
        if (found < room) out[found] = p;
        found++;
    }
    *n = found;
    return !found ? NOT_FOUND : found > room ? TOO_SMALL : OK;
}
typedef struct { unsigned version, n; u64 seen; ProcessUtil *array; } ProcessesUtilizationInfo;
int nvmlDeviceGetProcessesUtilizationInfo(Gpu *h, ProcessesUtilizationInfo *info) {
    DEVICE(h);
    if (info->version != 0x01000018) return VERSION;
    return process_utils(g, info->seen, &info->n, info->array);
}
typedef struct { unsigned pid; u64 stamp; unsigned sm, mem, enc, dec; } ProcessUtilSample;
int nvmlDeviceGetProcessUtilization(Gpu *h, ProcessUtilSample *out, unsigned *n, u64 seen) {
    DEVICE(h);
    ProcessUtil full[256];
    unsigned room = out ? *n : 0, found = 256;
    int rc = process_utils(g, seen, &found, full);
    *n = found;
    if (rc) return rc;
    if (found > room) return TOO_SMALL;
    for (unsigned i = 0; i < found; i++)
        out[i] = (ProcessUtilSample){full[i].pid, full[i].stamp, full[i].sm, full[i].mem, full[i].enc, full[i].dec};
    return OK;
}

/* --- events --- */

enum { MAX_SETS = 16, SET_MAGIC = 0x45765374 };
typedef struct { unsigned magic; u64 bits[MAX_GPUS]; } EventSet;
typedef struct { Gpu *device; u64 type, data; unsigned gi, ci; } EventData;
static EventSet sets[MAX_SETS];
static int set_count;
int nvmlEventSetCreate(EventSet **out) {
    ENTER(NODE);
    if (set_count == MAX_SETS) return UNKNOWN;
    *out = &sets[set_count++];
    (*out)->magic = SET_MAGIC;
    return OK;
}
int nvmlEventSetFree(EventSet *set) {
    ENTER(NODE);
    if (!set || set->magic != SET_MAGIC) return INVALID;
    set->magic = 0;
    return OK;
}
int nvmlDeviceGetSupportedEventTypes(Gpu *h, u64 *out) { DEVICE(h); *out = (u64)number(g, "events", 65439); return OK; }
int nvmlDeviceRegisterEvents(Gpu *h, u64 bits, EventSet *set) {
    DEVICE(h);
    if (!set || set->magic != SET_MAGIC || g >= MAX_GPUS) return INVALID;
    if (bits & ~(u64)number(g, "events", 65439)) return NOT_SUPPORTED; /* and none is registered */
    set->bits[g] |= bits;
    return OK;
}
/* The next untold event of a registered GPU. */
static int next_event(const EventSet *set, EventData *out) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count && !found; i++) {
        Statement *s = &statements[i];
        if (strcmp(s->key, "event") || s->uses || s->gpu < 0 || s->gpu >= MAX_GPUS || s->at_ms > now_ms()) continue;
        unsigned gi = ~0U;
        if (sscanf(s->value, "%llu:%llu:%u", &out->type, &out->data, &gi) < 2) refuse(0, "expected TYPE:DATA", s->value);
        if (!(set->bits[s->gpu] & out->type)) continue;
        s->uses = 1;
        out->device = &gpus[s->gpu];
        out->gi = gi;
        out->ci = ~0U;
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
int nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    unsigned step_ms = timeout_ms < 100 ? 2 : 20;
    struct timespec nap = {0, step_ms * 1000000L};
    ENTER(NODE);
    if (!set || set->magic != SET_MAGIC) return INVALID;
    for (unsigned waited = 0;; waited += step_ms) {
        for (int g = 0; g < MAX_GPUS; g++)
            if (set->bits[g] && fault(g, "rc", __func__) == 15) return 15; /* at once, again and again */
        if (next_event(set, out)) return OK;
        if (waited >= timeout_ms || released) return 10;
        nanosleep(&nap, NULL);
        reread();
    }
}

/* --- single readings --- */

#define MAYBE(function, type, key) \
    int function(Gpu *h, type *out) { \
        DEVICE(h); \
        if (isnan(number(g, key, NAN))) return NOT_SUPPORTED; \
        *out = (type)number(g, key, 0); \
        return OK; \
    }
#define SAMPLED(function, key) \
    int function(Gpu *h, unsigned *out, unsigned *period) { DEVICE(h); *out = (unsigned)number(g, key, 0); *period = 167000; return OK; }
SAMPLED(nvmlDeviceGetEncoderUtilization, "enc")
SAMPLED(nvmlDeviceGetDecoderUtilization, "dec")
SAMPLED(nvmlDeviceGetJpgUtilization, "jpg")
SAMPLED(nvmlDeviceGetOfaUtilization, "ofa")
VALUE(nvmlDeviceGetPerformanceState, unsigned, "pstate", 0)
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pciegen", 5)
VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pciewidth", 16)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pciegenmax", 5)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pciewidthmax", 16)
VALUE(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
VALUE(nvmlDeviceGetComputeMode, unsigned, "computemode", 0)
VALUE(nvmlDeviceGetSupportedClocksEventReasons, u64, "reasonsup", 0x1ff)
VALUE(nvmlDeviceGetTotalEnergyConsumption, u64, "energy", 1000000)
VALUE(nvmlDeviceGetVirtualizationMode, unsigned, "virt", 0)
MAYBE(nvmlDeviceGetNumFans, unsigned, "fans")
int nvmlDeviceGetFanSpeed_v2(Gpu *h, unsigned fan, unsigned *out) {
    DEVICE(h);
    if (fan >= number(g, "fans", 0)) return INVALID;
    *out = (unsigned)number(g, "fan", 30);
    return OK;
}
int nvmlDeviceGetEccMode(Gpu *h, unsigned *current, unsigned *pending) {
    DEVICE(h);
    *current = *pending = (unsigned)number(g, "ecc", 1);
    return OK;
}
typedef struct { unsigned version; int margin; } Margin;
int nvmlDeviceGetMarginTemperature(Gpu *h, Margin *out) {
    DEVICE(h);
    if (out->version != 0x01000008) return VERSION;
    out->margin = (int)number(g, "margin", 59);
    return OK;
}
typedef struct { u64 total, free, used; } Bar1;
int nvmlDeviceGetBAR1MemoryInfo(Gpu *h, Bar1 *out) {
    DEVICE(h);
    *out = (Bar1){(u64)number(g, "bar1", 274877906944.0), 0, (u64)number(g, "bar1used", 1048576)};
    out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetRemappedRows(Gpu *h, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    char rows[64];
    DEVICE(h);
    int rc = text(g, "remap", "0:0:0:0", rows, sizeof rows);
    return rc ? rc : sscanf(rows, "%u:%u:%u:%u", corr, unc, pending, failed) == 4 ? OK : UNKNOWN;
}
typedef struct { unsigned environment, feature, devtools; } ConfState;
int nvmlSystemGetConfComputeState(ConfState *out) {
    ENTER(NODE);
    *out = (ConfState){0, (unsigned)number(NODE, "conf", 0), 0};
    return OK;
}
int nvmlDeviceGetTemperatureThreshold(Gpu *h, unsigned type, unsigned *out) {
    char key[24];
    DEVICE(h);
    snprintf(key, sizeof key, "threshold.%u", type);
    if (isnan(number(g, key, NAN))) return NOT_SUPPORTED;
    *out = (unsigned)number(g, key, 0);
    return OK;
}
int nvmlDeviceGetNvLinkState(Gpu *h, unsigned link, unsigned *out) {
    char key[24];
    DEVICE(h);
    snprintf(key, sizeof key, "link.%u", link);
    if (isnan(number(g, key, NAN))) return NOT_SUPPORTED;
    *out = (unsigned)number(g, key, 0);
    return OK;
}
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } FabricInfo;
int nvmlDeviceGetGpuFabricInfoV(Gpu *h, FabricInfo *out) {
    char fabric[64];
    unsigned state = 0;
    DEVICE(h);
    if (out->version != 0x02000024) return VERSION;
    int rc = text(g, "fabric", "0:0:0", fabric, sizeof fabric);
    if (rc) return rc;
    if (sscanf(fabric, "%u:%u:%u", &state, &out->status, &out->health) != 3) refuse(0, "expected STATE:STATUS:HEALTH", fabric);
    out->state = (unsigned char)state;
    return OK;
}
int nvmlDeviceGetCpuAffinity(Gpu *h, unsigned words, unsigned long *out) {
    DEVICE(h);
    for (unsigned i = 0; i < words; i++) out[i] = i ? 0 : (unsigned long)number(g, "affinity", 3);
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(Gpu *h, Gpu *other, unsigned *out) {
    DEVICE(h);
    if (!there(other)) return INVALID;
    *out = (unsigned)number(g, "topo", 40);
    return OK;
}
int nvmlDeviceGetP2PStatus(Gpu *h, Gpu *other, unsigned index, unsigned *out) {
    DEVICE(h);
    if (!there(other)) return INVALID;
    *out = index == 2 ? (unsigned)number(g, "p2p", 0) : 0;
    return OK;
}
