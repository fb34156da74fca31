/* What the CPU backend says of the machine that it runs on: which one it is, and what it reaches at best (peaks.h), in the terms of
 * what operations use. See kernels/backend.h.
 *
 *     weights  int8: 4 bits   nibble    others, and floats quantised at load   int8       f32: any   FMA
 *     KV       f32, f16       FMA       int8                                   pairs of 16-bit integers
 *
 * Owner: any thread; no state. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/peaks.h"

/* The value of the first line of /proc/cpuinfo with this key; false: there is none. */
static bool cpuinfo(const char *key, char *out, size_t out_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, key, strlen(key)) != 0)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(out, out_bytes, "%s", value);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

void cpu_device_machine(const struct kern_device *device_base, char *text_out, size_t text_bytes)
{
    const struct cpu_device *device = (const struct cpu_device *)device_base;
    char model[96] = "unknown", part[32] = "";
    if (!cpuinfo("model name", model, sizeof model) && cpuinfo("CPU implementer", model, 32) &&
        cpuinfo("CPU part", part, sizeof part))
        snprintf(model + strlen(model), sizeof model - strlen(model), " %s", part);
    snprintf(text_out, text_bytes, "%s, %ld processors, %s %s, %u threads", model,
             sysconf(_SC_NPROCESSORS_ONLN), cpu_isa_name(device->isa),
             device->compute == KERN_COMPUTE_INT8 ? "int8" : "f32", device->threads);
    for (char *c = text_out; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

/* As much as no cache holds: twice the last one, within limits. The kernel's files know its size where sysconf, which adds up what
 * a whole package may have, does not. */
static size_t read_bytes_of(void)
{
    const size_t least = (size_t)64 << 20, most = (size_t)512 << 20;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    unsigned kilobytes = 0;
    if (file) {
        if (fscanf(file, "%u", &kilobytes) != 1)
            kilobytes = 0;
        fclose(file);
    }
    size_t bytes = (size_t)kilobytes * 2048;
    return bytes < least ? least : bytes > most ? most : bytes;
}

enum status cpu_device_peaks(const struct kern_device *device_base, struct kern_peaks *peaks_out)
{
    const struct cpu_device *device = (const struct cpu_device *)device_base;
    unsigned threads = device->threads < PEAKS_THREADS_MAX ? device->threads : PEAKS_THREADS_MAX;
    struct peaks peaks;
    double gb_per_s;
    enum status status = peaks_measure(device->isa, threads, PEAKS_QUICK, &peaks);
    if (!status)
        status =
            peaks_read_bandwidth(device->isa, read_bytes_of(), threads, PEAKS_QUICK, &gb_per_s);
    if (status)
        return status;
    double scale =
        1e9 * device->threads / threads; /* arithmetic, of those that were not measured */
    double f32 = peaks.f32 * scale, int8 = peaks.int8 * scale, nibble = peaks.nibble * scale;
    *peaks_out = (struct kern_peaks){.read_bytes = gb_per_s * 1e9};
    for (int type = 0; type < KERN_WEIGHT_TYPES; type++) {
        bool four_bits = type == KERN_WEIGHT_Q4_0 || type == KERN_WEIGHT_Q4_1;
        peaks_out->weight_ops[type] = device->compute == KERN_COMPUTE_F32 ? f32
                                      : four_bits                         ? nibble
                                                                          : int8;
    }
    for (int type = 0; type < KERN_KV_TYPE_COUNT; type++)
        peaks_out->kv_ops[type] = type == KERN_KV_INT8 ? peaks.pair * scale : f32;
    return STATUS_OK;
}
