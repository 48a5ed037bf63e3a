// Stands in for libquire_cuda.so: what it says is chosen when it is compiled.
#include <cstring>

#include "kernels/cuda/backend/entry.h"

namespace {

void probe(QuireCudaReport* report) {
  *report = {};
  report->driver_version = 13000;
  report->toolkit_version = 13000;
  report->num_devices = MADE_UP_DEVICES;
  for (int i = 0; i < MADE_UP_DEVICES; ++i) {
    std::strcpy(report->devices[i].name, "Made-up GPU");
    report->devices[i].index = i;
    report->devices[i].major = 9;
    report->devices[i].total_bytes = std::int64_t{80} << 30;
  }
}

std::int32_t self_test(std::int32_t device, char* message, std::int32_t) {
  if (device == 0) return 0;
  std::strcpy(message, "an illegal memory access");
  return 12;  // Code::kDeviceLost
}

}  // namespace

extern "C" const QuireCudaEntry* quire_cuda_entry() {
  static const QuireCudaEntry entry{MADE_UP_VERSION, sizeof(QuireCudaEntry), &probe, &self_test};
  return &entry;
}
