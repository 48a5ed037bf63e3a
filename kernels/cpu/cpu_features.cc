#include "kernels/cpu/cpu_features.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "hwy/highway.h"

namespace quire::cpu {
namespace {

constexpr int kArchReqXcompPerm = 0x1023;  // asm/prctl.h, Linux 5.16
constexpr int kXfeatureTileData = 18;

bool tiles_allowed() { return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0; }

bool cpuid_bit(unsigned leaf_edx_bit) {
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (d >> leaf_edx_bit) & 1u;
}

Isa detect() {
  const auto targets = hwy::SupportedTargets();
  if (!(targets & HWY_AVX2)) return Isa::kScalar;
  if (!(targets & HWY_AVX3)) return Isa::kAvx2;
  constexpr unsigned kAmxBf16 = 22, kAmxTile = 24;
  // The builtins also check that the operating system saves the registers.
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vnni"))
    return Isa::kAvx512;
  if (!cpuid_bit(kAmxBf16) || !cpuid_bit(kAmxTile) || !tiles_allowed()) return Isa::kAvx512Bf16;
  return Isa::kAmx;
}

Isa lowered_by_environment(Isa found) {
  const char* text = std::getenv("QUIRE_MAX_ISA");
  if (text == nullptr || *text == 0) return found;
  const std::string_view name(text);
  Isa limit = found;
  if (name == "scalar")
    limit = Isa::kScalar;
  else if (name == "avx2")
    limit = Isa::kAvx2;
  else if (name == "avx512")
    limit = Isa::kAvx512;
  else if (name == "avx512_bf16")
    limit = Isa::kAvx512Bf16;
  else if (name == "amx")
    limit = Isa::kAmx;
  else
    log_warning("QUIRE_MAX_ISA is ignored: use scalar, avx2, avx512, avx512_bf16 or amx",
                {{"value", std::string(name)}});
  return limit < found ? limit : found;
}

Isa choose() {
  const Isa isa = lowered_by_environment(detect());
  // Highway reads the supported targets at the first dispatch, so this must run before it (see
  // `kChosen`).
  if (isa < Isa::kAvx512) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  if (isa < Isa::kAvx2) hwy::DisableTargets(HWY_AVX2 | HWY_SSE4 | HWY_SSSE3);
  return isa;
}

Isa chosen() {
  static const Isa isa = choose();
  return isa;
}

// The instruction set is chosen while the program loads, before any kernel can run.
[[maybe_unused]] const Isa kChosen = chosen();

}  // namespace

Isa isa() { return chosen(); }

}  // namespace quire::cpu
