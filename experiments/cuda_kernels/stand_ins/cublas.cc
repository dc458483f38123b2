// Stand-ins for cuBLAS: the calls that choose a dtype to compute in write it down.

typedef void* Handle;

extern "C" {

void stand_in_note(const char* line);

// cublasComputeType_t: 64 is float16, 68 float32; as cudaDataType: 2 is float16, 0 float32
static void note(int dtype) {
  stand_in_note(dtype == 68 || dtype == 0   ? "CALL cublasGemm computes in float32"
                : dtype == 64 || dtype == 2 ? "CALL cublasGemm computes in float16"
                                            : "CALL cublasGemm computes in another dtype");
}

int cublasGemmEx(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*,
                 int, int, const void*, Handle, int, int, int dtype, int) {
  note(dtype);
  return 0;
}

int cublasGemmStridedBatchedEx(Handle, int, int, int, int, int, const void*, const void*, int, int,
                               long long, const void*, int, int, long long, const void*, Handle,
                               int, int, long long, int, int dtype, int) {
  note(dtype);
  return 0;
}

int cublasHgemmStridedBatched() {
  stand_in_note("CALL cublasHgemmStridedBatched computes in float16");
  return 0;
}

}  // extern "C"
