/* Calls that only other monitors make, a part of fake_nvml.c: tests/tools/compare_peers.py and bench/screens.py run those
 * on the fake. */

int nvmlDeviceGetIndex(Gpu *h, unsigned *out) { DEVICE(h); *out = (unsigned)g; return OK; }
int nvmlDeviceGetFanSpeed(Gpu *h, unsigned *out) { (void)out; DEVICE(h); (void)g; return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEccErrors(Gpu *h, unsigned kind, unsigned counter, u64 *out) {
    (void)kind, (void)counter;
    DEVICE(h);
    *out = 0 * (u64)g;
    return OK;
}
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, "limit", 700000)
VALUE(nvmlDeviceGetDisplayActive, unsigned, "display", 0)
/* WDDM or TCC: Windows only. */
int nvmlDeviceGetDriverModel(Gpu *h, unsigned *current, unsigned *pending) {
    (void)current, (void)pending;
    DEVICE(h);
    (void)g;
    return NOT_SUPPORTED;
}
