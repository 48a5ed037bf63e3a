# Shared by tests/gpu/run, tests/gpu/all and bench/gpu/run; sourced, not run. ROOT is set.
# BUILD: the folder of programs, QUIRE_GPU_BUILD or build/gpu. OUT: the folder of results, from the
# environment or build/gpu/out. Everything is written there as soon as it is known.
BUILD="${QUIRE_GPU_BUILD:-$ROOT/build/gpu}"
export OUT="${OUT:-$BUILD/out}"

# find_tool NAME: prints where a tool is; 1: nowhere.
find_tool() {
  local nvcc python folder
  command -v "$1" 2>/dev/null && return
  nvcc="$(command -v nvcc 2>/dev/null)"
  python="$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)"
  for folder in "${nvcc%/*}" "${python%/*}" "${CUDA_HOME:-/usr/local/cuda}"/bin \
    "${CUDA_HOME:-/usr/local/cuda}"/compute-sanitizer /usr/local/cuda*/bin \
    /usr/local/cuda*/compute-sanitizer /opt/cuda/bin /opt/nvidia/nsight-compute/* \
    /usr/lib/cuda/bin /usr/lib/nvidia-cuda-toolkit/bin; do
    [ -n "$folder" ] && [ -x "$folder/$1" ] && { echo "$folder/$1"; return; }
  done
  return 1
}

# Ends with status 77 where there is no GPU that a driver shows.
need_gpu() {
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "there is no GPU on this machine (nvidia-smi lists none): nothing was run;" \
      "--build-only compiles" >&2
    exit 77
  fi
}

# configure_gpu: for QUIRE_CUDA_ARCHITECTURES, else for the GPU of this machine, else for sm_80 and
# sm_90. Libraries that stand elsewhere (Highway) are found by CMAKE_PREFIX_PATH.
configure_gpu() {
  local options=(-S "$ROOT/tests/gpu" -B "$BUILD" -DCMAKE_BUILD_TYPE=Release) capability ninja
  CMAKE="$(find_tool cmake)" || { echo "error: CMake 3.22 or newer is needed" >&2; return 1; }
  if [ ! -e "$BUILD/CMakeCache.txt" ] && ninja="$(find_tool ninja || find_tool ninja-build)"; then
    options+=(-G Ninja -DCMAKE_MAKE_PROGRAM="$ninja")
  fi
  capability="${QUIRE_CUDA_ARCHITECTURES:-}"
  [ -n "$capability" ] ||
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
      head -n 1 | tr -d '. ')"
  [[ "$capability" =~ ^[0-9]+(\;[0-9]+)*$ ]] && options+=(-DCMAKE_CUDA_ARCHITECTURES="$capability")
  mkdir -p "$BUILD" "$OUT"
  "$CMAKE" "${options[@]}" >>"$OUT/build.log" 2>&1 || {
    tail -n 20 "$OUT/build.log" >&2
    echo "error: CMake could not configure" >&2
    return 1
  }
}

# build_targets TARGET...: builds with QUIRE_BUILD_JOBS or all cores, and as much as can be built.
build_targets() {
  local keep=()
  [ -e "$BUILD/build.ninja" ] && keep=(-k 0)
  "$CMAKE" --build "$BUILD" -j "${QUIRE_BUILD_JOBS:-$(nproc)}" --target "$@" -- \
    ${keep[@]+"${keep[@]}"} >>"$OUT/build.log" 2>&1 || {
    grep -E 'error|FAILED' "$OUT/build.log" | head -n 20 | cut -c 1-300 >&2
    echo "error: the build failed; see $OUT/build.log" >&2
    return 1
  }
}

# build_gpu TARGET...: both.
build_gpu() { configure_gpu && build_targets "$@"; }

# probe_gpu: what the machine is, into $OUT/probe.txt, cheapest first.
probe_gpu() {
  local tool query
  {
    date -u +%Y-%m-%dT%H:%M:%SZ
    uname -srm
    nproc
    head -n 3 /proc/meminfo
    echo "commit $(source_commit)"
    for tool in nvcc cmake ninja make g++ compute-sanitizer ncu nsys cuobjdump python3 ccache; do
      echo "$tool: $(find_tool "$tool" || echo none)"
    done
    for query in name,driver_version,compute_cap,memory.total,memory.used \
      pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.current \
      clocks.max.sm,clocks.sm,clocks.mem,power.limit,persistence_mode,compute_mode,mig.mode.current
    do
      timeout 10 nvidia-smi --query-gpu="$query" --format=csv 2>&1
    done
    echo "Highway: $(ls -d /usr/include/hwy ${CMAKE_PREFIX_PATH//:/ } 2>/dev/null | tr '\n' ' ')"
  } >>"$OUT/probe.txt" 2>&1
  timeout 20 python3 - >>"$OUT/probe.txt" 2>&1 <<'PYTHON' || true
import ctypes, importlib.util

for name in ("torch", "transformers", "flashinfer", "vllm", "triton", "nvidia"):
    print(f"python3 package {name}:", "there" if importlib.util.find_spec(name) else "missing")
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    print("cuInit:", cuda.cuInit(0))
    device, value = ctypes.c_int(), ctypes.c_int()
    print("cuDeviceGet:", cuda.cuDeviceGet(ctypes.byref(device), 0))
    attributes = {  # CUdevice_attribute of cuda.h
        "multiprocessors": 16, "clock_khz": 13, "memory_clock_khz": 36, "bus_bits": 37,
        "l2_bytes": 38, "threads_per_multiprocessor": 39, "concurrent_kernels": 31,
        "async_engines": 40, "unified_addressing": 41, "stream_priorities": 78,
        "managed_memory": 83, "concurrent_managed_access": 89, "pageable_memory_access": 88,
        "host_registered_pointer": 91, "shared_bytes_per_block_optin": 97,
        "shared_bytes_per_multiprocessor": 81, "memory_pools": 115, "ecc": 32, "tcc": 35,
    }
    for name, code in attributes.items():
        error = cuda.cuDeviceGetAttribute(ctypes.byref(value), code, device)
        print(f"{name}: {value.value if error == 0 else f'error {error}'}")
except OSError as error:
    print("libcuda:", error)
PYTHON
  { timeout 20 nvidia-smi topo -m; timeout 30 nvidia-smi -q; } >>"$OUT/probe.txt" 2>&1
  return 0
}
