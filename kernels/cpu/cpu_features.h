/// This file declares the instruction sets of this CPU, determined once per process.
#pragma once

namespace quire::cpu {

enum class Isa : unsigned char { kScalar = 0, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// Returns the widest instruction set that kernels may use. It is what CPU and operating system
/// allow, lowered by the environment variable QUIRE_MAX_ISA (scalar, avx2, avx512, avx512_bf16,
/// amx), which also lowers the Highway targets. kAvx512Bf16 includes VBMI and VNNI; every CPU with
/// AMX has all three. AMX tiles are requested from the operating system once.
Isa isa();

}  // namespace quire::cpu
