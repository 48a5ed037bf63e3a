/// Chooses the TestDevice of the parity tests: the emulation, or a GPU where nvcc compiles them
/// (tests/gpu).
#pragma once

#ifdef __CUDACC__
#include "tests/gpu/hardware_device.h"
#else
#include "tests/unit/kernels/cuda/emulated_device.h"
#endif
