# Shared by tests/gpu/run and bench/gpu/run; sourced, not run. ROOT is set.
BUILD="$ROOT/build/gpu"

# Ends with status 77 where there is no GPU that a driver shows.
need_gpu() {
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "there is no GPU on this machine (nvidia-smi lists none): nothing was run;" \
      "--build-only compiles" >&2
    exit 77
  fi
}

# build_gpu TARGET...: configures for QUIRE_CUDA_ARCHITECTURES, else for the GPU of this machine,
# else for sm_80 and sm_90, and builds with QUIRE_BUILD_JOBS or all cores.
build_gpu() {
  command -v cmake >/dev/null || { echo "error: CMake 3.22 or newer is needed" >&2; return 1; }
  local options=(-S "$ROOT/tests/gpu" -B "$BUILD" -DCMAKE_BUILD_TYPE=Release) capability
  capability="${QUIRE_CUDA_ARCHITECTURES:-}"
  [ -n "$capability" ] ||
    capability="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
      head -n 1 | tr -d '. ')"
  [[ "$capability" =~ ^[0-9]+(\;[0-9]+)*$ ]] && options+=(-DCMAKE_CUDA_ARCHITECTURES="$capability")
  mkdir -p "$BUILD"
  cmake "${options[@]}" >"$BUILD/configure.log" 2>&1 || {
    cat "$BUILD/configure.log" >&2
    echo "error: CMake could not configure" >&2
    return 1
  }
  cmake --build "$BUILD" -j "${QUIRE_BUILD_JOBS:-$(nproc)}" --target "$@" \
    >"$BUILD/build.log" 2>&1 || {
    tail -n 60 "$BUILD/build.log" >&2
    echo "error: the build failed; see $BUILD/build.log" >&2
    return 1
  }
}
