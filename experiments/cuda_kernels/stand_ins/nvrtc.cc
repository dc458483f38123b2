// Stand-ins for NVRTC: the source of a fused kernel is appended to the file $STAND_IN_FUSED.

#include <cstdio>
#include <cstdlib>

typedef void* Handle;

extern "C" {

int nvrtcCreateProgram(Handle* program, const char* source, const char*, int, Handle, Handle) {
  *program = calloc(1, 64);
  if (const char* path = getenv("STAND_IN_FUSED")) {
    if (FILE* file = fopen(path, "a")) {
      fputs(source, file);
      fclose(file);
    }
  }
  return 0;
}

int nvrtcGetLoweredName(Handle, const char*, const char** name) {
  *name = "kernel";
  return 0;
}

}  // extern "C"
