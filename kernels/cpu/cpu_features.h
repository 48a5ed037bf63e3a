/// What this CPU can do, decided once per process.
#pragma once

namespace quire::cpu {

enum class Isa : unsigned char { kScalar = 0, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// kAvx512Bf16 also means VBMI and VNNI; every CPU with AMX has all three.
/// The widest instruction set kernels may use here: what CPU and operating system allow, lowered by
/// the environment variable QUIRE_MAX_ISA (scalar, avx2, avx512, avx512_bf16, amx), which also
/// lowers the Highway targets. Asks the kernel for AMX tiles once.
Isa isa();

}  // namespace quire::cpu
