/* MIG and unified memory of the fake, a part of fake_nvml.c. Keys of a scenario:
 *
 *   gpu 0   mig=1                MIG is on: no utilization for the GPU
 *   gpu 100 there=1 slices=2     slot 0 of GPU 0 holds an instance of two slices; all other keys apply to it as well
 *   gpu 0   addressing=2         0 none, 1 HMM, 2 ATS; without it the call is NOT_SUPPORTED
 *
 * A slot without an instance answers NOT_FOUND; a handle of an instance that has been destroyed, INVALID_ARGUMENT.
 */

int nvmlDeviceGetMigMode(Gpu *h, unsigned *current, unsigned *pending) {
    DEVICE(h);
    if (g >= 100) return INVALID;
    if (isnan(number(g, "mig", NAN))) return NOT_SUPPORTED;
    *current = *pending = number(g, "mig", 0) != 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Gpu *h, unsigned *out) {
    DEVICE(h);
    *out = isnan(number(g, "mig", NAN)) ? 0 : SLOTS - 1;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *h, unsigned slot, Gpu **out) {
    DEVICE(h);
    if (g >= 100 || slot >= SLOTS - 1) return INVALID;
    *out = &gpus[MAX_GPUS + g * SLOTS + (int)slot];
    return number(g, "mig", 0) != 0 && there(*out) ? OK : NOT_FOUND;
}
typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} Attributes;
int nvmlDeviceGetAttributes_v2(Gpu *h, Attributes *out) {
    DEVICE(h);
    unsigned slices = (unsigned)number(g, "slices", 1);
    if (g < 100) return NOT_SUPPORTED;
    *out = (Attributes){16 * slices, 1, 1, 0, 1, 0, slices, slices, (unsigned long long)(number(g, "total", 18e9) / 1048576)};
    return OK;
}
typedef struct { unsigned version, value; } Addressing;
int nvmlDeviceGetAddressingMode(Gpu *h, Addressing *out) {
    DEVICE(h);
    if (out->version != 0x01000008) return VERSION;
    if (isnan(number(g, "addressing", NAN))) return NOT_SUPPORTED;
    out->value = (unsigned)number(g, "addressing", 0);
    return OK;
}
