// Stand-in for the driver: it launches fused kernels.

extern "C" {

void stand_in_note(const char* line);

int cuLaunchKernel() {
  stand_in_note("KERNEL fused");
  return 0;
}

}  // extern "C"
