/* A stand-in for libnvidia-ml.so.1: the functions that are used, with the signatures, structures and return codes of
 * nvml.h as nvidia-ml-py 13.615.71 (PyPI) has them. Files in $NVIDIA_STAND_IN change what it says: "lost" holds the
 * index of a GPU that is gone, "hang" that of one whose readings never return, "errors" that of one with new errors. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
#define GPUS 8
#define LINKS 18
typedef struct { unsigned index; } gpu_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; } value_t;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type, result; value_t value; } field_t;
_Static_assert(sizeof(field_t) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(pci_t) == 68, "nvmlPciInfo_t");

static gpu_t gpus[GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

static int said(const char *what) {
  char path[4096], text[16] = "";
  const char *folder = getenv("NVIDIA_STAND_IN");
  if (!folder) return -1;
  snprintf(path, sizeof path, "%s/%s", folder, what);
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  if (!fgets(text, sizeof text, file)) strcpy(text, "-1");
  fclose(file);
  return atoi(text);
}
static int state(gpu_t *gpu) {
  if (said("hang") == (int)gpu->index) for (;;) pause();
  return said("lost") == (int)gpu->index ? GPU_IS_LOST : SUCCESS;
}
#define GIVE(target, what) do { int code = state(gpu); if (code) return code; *(target) = (what); return SUCCESS; } while (0)

int nvmlInit_v2(void) { return said("unloaded") >= 0 ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu) {
  if (index >= GPUS) return INVALID_ARGUMENT;
  if (said("lost") == (int)index && said("remembered") < 0) return GPU_IS_LOST;
  *gpu = &gpus[index];
  return SUCCESS;
}
int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned length) { /* remembered when the GPU is gone */
  return snprintf(uuid, length, "GPU-0000000%u", gpu->index) < (int)length ? SUCCESS : 7;
}
int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
  memset(pci, 0, sizeof *pci);
  pci->domain = 0; pci->bus = 0x10 + gpu->index; pci->device = 0;
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
  return state(gpu);
}
int nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *value) {
  if (sensor != 0) return INVALID_ARGUMENT;
  GIVE(value, 50 + gpu->index);
}
int nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *value) { GIVE(value, 690500 + gpu->index * 1000); }
int nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *value) { GIVE(value, 700000); }
int nvmlDeviceGetClockInfo(gpu_t *gpu, unsigned kind, unsigned *value) { GIVE(value, kind == 1 ? 1980 : 3201); }
int nvmlDeviceGetUtilizationRates(gpu_t *gpu, utilization_t *value) {
  if (state(gpu)) return GPU_IS_LOST;
  value->gpu = gpu->index == 7 ? 10 : 99; value->memory = 40;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *value) {
  if (state(gpu)) return GPU_IS_LOST;
  value->total = 150754820096ull; value->used = 100000000000ull + gpu->index; value->free = value->total - value->used;
  return SUCCESS;
}
#ifndef OLD /* before driver 535 */
int nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *value) { GIVE(value, gpu->index == 2 ? 0x48 : 0x4); }
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *value) { GIVE(value, 0x20); }
int nvmlDeviceGetCurrPcieLinkWidth(gpu_t *gpu, unsigned *value) { GIVE(value, said("narrow") == (int)gpu->index ? 8 : 16); }
int nvmlDeviceGetCurrPcieLinkGeneration(gpu_t *gpu, unsigned *value) { GIVE(value, gpu->index == 7 ? 1 : 5); }
int nvmlDeviceGetPcieReplayCounter(gpu_t *gpu, unsigned *value) { GIVE(value, said("errors") == (int)gpu->index ? 12 : 5); }
int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, unsigned kind, unsigned counter, unsigned long long *value) {
  if (counter != 0) return INVALID_ARGUMENT; /* volatile */
  GIVE(value, said("errors") == (int)gpu->index ? 5000000000ull + 2 + kind : 5000000000ull);
}
#ifndef OLD
int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure) {
  int more = said("errors") == (int)gpu->index;
  *corrected = 1; *uncorrected = more; *pending = more; *failure = 0;
  return state(gpu);
}
#else
int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *a, unsigned *b, unsigned *c, unsigned *d) { return NOT_SUPPORTED; }
#endif
int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *active) {
  if (link >= LINKS) return INVALID_ARGUMENT;
  GIVE(active, !(said("down") == (int)gpu->index && link == 7));
}
int nvmlDeviceGetNvLinkErrorCounter(gpu_t *gpu, unsigned link, unsigned counter, unsigned long long *value) {
#ifdef OLD
  return NOT_SUPPORTED;
#endif
  if (link >= LINKS || counter > 4) return NOT_SUPPORTED;
  static unsigned long long mended;
  if (counter >= 3) GIVE(value, ++mended); /* healthy links mend bits all the time */
  GIVE(value, said("errors") == (int)gpu->index && link == 3 && counter == 2 ? 9 : 0);
}
int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields) {
  if (state(gpu)) return GPU_IS_LOST;
  for (int i = 0; i < count; i++) {
    field_t *field = &fields[i];
    field->result = SUCCESS;
    field->value.ull = 0xffffffffffffffffull; /* so that a reader of the wrong member sees it */
    switch (field->field) {
      case 82: field->type = 1; field->value.ui = 60 + gpu->index; break;
      case 91: field->type = 1; field->value.ui = LINKS; break;
      case 164: field->type = 1; field->value.ui = 53125; break;
      case 207: field->type = 3; field->value.ull = field->scope == 4 ? 6 : 0; break; /* NVLink 5, by link */
      case 208: field->type = 0; field->value.d = 1.0; break;
      default: field->result = NOT_SUPPORTED;
    }
  }
  return SUCCESS;
}

/* NVLink fabric and place in the rack: "fabric-INDEX" holds state, status, clique, a byte of the cluster's UUID, health
 * mask and summary; without it the GPU has no fabric. "platform" makes it a tray. */
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned mask; unsigned char summary; } fabric_t;
typedef struct { unsigned version; unsigned char guid[16], serial[16], slot, tray, host, peer, module; } platform_t;
_Static_assert(sizeof(fabric_t) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(platform_t) == 44, "nvmlPlatformInfo_v2_t");
#ifndef OLD
int nvmlDeviceGetGpuFabricInfoV(gpu_t *gpu, fabric_t *value) {
  char path[4096];
  unsigned state_, status, clique, byte, mask, summary;
  const char *folder = getenv("NVIDIA_STAND_IN");
  int newest = said("older_fabric") < 0; /* a driver that knows version 2 only, which ends before the summary */
  if (value->version != (newest ? (3u << 24 | 40) : (2u << 24 | 36))) return 25; /* ARGUMENT_VERSION_MISMATCH */
  snprintf(path, sizeof path, "%s/fabric-%u", folder ? folder : "/nowhere", gpu->index);
  FILE *file = fopen(path, "r");
  if (!file) return NOT_SUPPORTED;
  int read = fscanf(file, "%u %u %u %u %u %u", &state_, &status, &clique, &byte, &mask, &summary);
  fclose(file);
  if (read != 6) return 999;
  memset(value->cluster, (int)byte, 16);
  value->state = state_; value->status = status; value->clique = clique; value->mask = mask;
  if (newest) value->summary = summary;
  return SUCCESS;
}
int nvmlDeviceGetPlatformInfo(gpu_t *gpu, platform_t *value) {
  if (said("platform") < 0) return NOT_SUPPORTED;
  if (value->version != (2u << 24 | 44)) return 25;
  memset(value->guid, 0, 16); value->guid[7] = 16 + gpu->index;
  memcpy(value->serial, "1820000000001\0\0\0", 16);
  if (said("platform") == 0) { /* as an H200 answers */
    memset(value->guid, 0, 37);
    value->host = 1; value->module = gpu->index + 1;
    return SUCCESS;
  }
  value->slot = 14; value->tray = 4; value->host = 1; value->peer = 1; value->module = gpu->index + 1;
  return SUCCESS;
}
#endif
const char *nvmlErrorString(int code) { return code == 23 ? "Insufficient Resources" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.173.02"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetName(gpu_t *gpu, char *text, unsigned length) { snprintf(text, length, "NVIDIA GB200"); return SUCCESS; }
int nvmlDeviceGetSerial(gpu_t *gpu, char *text, unsigned length) { snprintf(text, length, "16500000000%02u", gpu->index / 2); return SUCCESS; }
int nvmlDeviceGetEccMode(gpu_t *gpu, unsigned *now, unsigned *next) { *now = *next = 1; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(gpu_t *gpu, unsigned *value) { GIVE(value, 16); }
typedef struct { unsigned version; int margin; } margin_t;
#ifndef OLD
int nvmlDeviceGetMarginTemperature(gpu_t *gpu, margin_t *value) {
  if (value->version != (1u << 24 | 8)) return 25;
  GIVE(&value->margin, 35 - (int)gpu->index);
}
#endif
