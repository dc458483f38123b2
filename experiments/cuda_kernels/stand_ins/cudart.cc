// Stand-ins for the CUDA runtime: memory is the host's, a launch computes nothing and is written down.
// The log has one line for each launch, call of a library and copy. The numbers of attributes are
// those of cudaDeviceAttr in driver_types.h; the device is a V100 (compute capability 7.0).

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

struct dim3 {
  unsigned x, y, z;
};
typedef void* Handle;

namespace {

std::mutex mutex;
FILE* log_file = nullptr;

// Never destroyed: MXNet registers its kernels before, and uses them after, this library's objects.
std::unordered_map<const void*, const char*>& kernels() {
  static auto* map = new std::unordered_map<const void*, const char*>;
  return *map;
}

// The beginning of cudaDeviceProp (driver_types.h of CUDA 11), with the fields that MXNet reads
struct Properties {
  char name[256], id[28];
  size_t memory, shared_per_block;
  int registers, warp;
  size_t pitch;
  int threads_per_block, block_sizes[3], grid_sizes[3], clock;
  size_t constants;
  int major, minor;
  size_t alignment, pitch_alignment;
  int overlap, processors;
};

// Attributes and their values; that of all others is 65535
const int kAttributes[][2] = {
    {75, 7}, {76, 0},         // compute capability
    {1, 1024}, {10, 32},      // threads of a block and of a warp
    {16, 80}, {39, 2048},     // processors, and threads of each
    {8, 49152}, {97, 49152},  // bytes that the threads of a block share
};

}  // namespace

extern "C" {

void stand_in_log(const char* path) {
  std::lock_guard<std::mutex> lock(mutex);
  if (log_file) fclose(log_file);
  log_file = *path ? fopen(path, "w") : nullptr;
}

void stand_in_note(const char* line) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!log_file) return;
  fprintf(log_file, "%s\n", line);
  fflush(log_file);
}

int cudaGetDeviceCount(int* count) {
  const char* wanted = getenv("STAND_IN_GPUS");
  *count = wanted ? atoi(wanted) : 1;
  return 0;
}

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = 65535;
  for (const auto& known : kAttributes)
    if (known[0] == attribute) *value = known[1];
  return 0;
}

int cudaGetDeviceProperties(Properties* properties, int) {
  *properties = {"stand-in", {0}, size_t(16) << 30, 49152, 65536, 32, 1 << 30, 1024,
                 {1024, 1024, 64}, {2147483647, 65535, 65535}, 1, 65536, 7, 0, 512, 32, 1, 80};
  return 0;
}

int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = *total = size_t(16) << 30;
  return 0;
}

int cudaMalloc(Handle* pointer, size_t bytes) {
  *pointer = calloc(1, bytes + 64);
  return 0;
}

int cudaFree(Handle pointer) {
  free(pointer);
  return 0;
}

int cudaMallocPitch(Handle* pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = width;
  return cudaMalloc(pointer, width * height);
}

int cudaHostAlloc(Handle* pointer, size_t bytes, unsigned) { return cudaMalloc(pointer, bytes); }

int cudaFreeHost(Handle pointer) { return cudaFree(pointer); }

int cudaMemcpy(Handle to, const void* from, size_t bytes, int) {
  memcpy(to, from, bytes);
  return 0;
}

int cudaMemcpyAsync(Handle to, const void* from, size_t bytes, int, Handle) {
  stand_in_note("COPY");
  memcpy(to, from, bytes);
  return 0;
}

int cudaMemcpy2DAsync(Handle to, size_t to_pitch, const void* from, size_t from_pitch,
                      size_t width, size_t height, int, Handle) {
  stand_in_note("COPY");
  for (size_t row = 0; row < height; ++row)
    memcpy(static_cast<char*>(to) + row * to_pitch,
           static_cast<const char*>(from) + row * from_pitch, width);
  return 0;
}

int cudaMemcpyPeerAsync(Handle to, int, const void* from, int, size_t bytes, Handle) {
  stand_in_note("COPY to another device");
  memcpy(to, from, bytes);
  return 0;
}

int cudaMemsetAsync(Handle to, int value, size_t bytes, Handle) {
  memset(to, value, bytes);
  return 0;
}

const char* cudaGetErrorName(int) { return "an error"; }
const char* cudaGetErrorString(int) { return "an error"; }

int cudaFuncGetAttributes(void* attributes, const void*) {
  memset(attributes, 0, 56);
  int* fields = reinterpret_cast<int*>(static_cast<char*>(attributes) + 24);
  fields[0] = 1024;                 // threads in a block
  fields[1] = 32;                   // registers
  fields[2] = fields[3] = 70;       // versions of PTX and machine code
  return 0;
}

int cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, Handle) {
  std::lock_guard<std::mutex> lock(mutex);
  if (log_file) {
    auto found = kernels().find(function);
    fprintf(log_file, "KERNEL %s\n", found == kernels().end() ? "?" : found->second);
    fflush(log_file);
  }
  return 0;
}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  kernels()[function] = name;
}

}  // extern "C"
