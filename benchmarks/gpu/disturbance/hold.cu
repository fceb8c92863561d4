// Keeps multiprocessors of a GPU from all other work of the same process: blocks that need a whole multiprocessor spin
// there. disturb() launches them on a stream of high priority until the process ends.
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const int THREADS = 1024;
static const int SHARED_BYTES = 227 * 1024;  // all that a block may have: no other block with shared memory fits beside it

static __device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void __launch_bounds__(THREADS, 1) hold(unsigned long long duration) {
  const unsigned long long begun = nanoseconds();
  while (nanoseconds() - begun < duration) {
  }
}

static double seconds() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

// Hold `blocks` multiprocessors (0: all) for `hold_seconds` at a time, with gaps of `gap_seconds` in the mean, exponential.
// Rewrites the file `note` about every second: launches, and their share of the time so far. Returns CUDA's error.
extern "C" int disturb(int device, int blocks, double hold_seconds, double gap_seconds, const char *note) {
  int all = 0, least = 0, greatest = 0;
  cudaStream_t stream;
  cudaEvent_t ended[2];
  cudaError_t error = cudaSetDevice(device);
  if (!error) error = cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
  if (!error) error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (!error) error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
  if (!error) error = cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  for (int i = 0; i < 2 && !error; i++)
    error = cudaEventCreateWithFlags(&ended[i], cudaEventDisableTiming | cudaEventBlockingSync);
  srand48(37);  // the first numbers without it are near 0: long gaps
  const double begun = seconds();
  double noted = begun;
  for (long launch = 0; !error; launch++) {
    error = cudaEventSynchronize(ended[launch % 2]);  // at most one waits for another; with gaps none
    if (gap_seconds > 0) {
      const double gap = -gap_seconds * log(drand48() + 1e-12);
      const struct timespec rest = {(time_t)gap, (long)(fmod(gap, 1.0) * 1e9)};
      nanosleep(&rest, NULL);
    }
    if (error) break;
    hold<<<blocks ? blocks : all, THREADS, SHARED_BYTES, stream>>>((unsigned long long)(hold_seconds * 1e9));
    error = cudaGetLastError();
    if (!error) error = cudaEventRecord(ended[gap_seconds > 0 ? (launch + 1) % 2 : launch % 2], stream);
    if (seconds() - noted > 1) {
      noted = seconds();
      FILE *file = fopen(note, "w");
      if (file) {
        fprintf(file, "{\"launches\": %ld, \"multiprocessors\": %d, \"of\": %d, \"share\": %.4f}\n", launch + 1,
                blocks ? blocks : all, all, (launch + 1) * hold_seconds / (noted - begun));
        fclose(file);
      }
    }
  }
  return (int)error;
}
