# Build options. The presets in CMakePresets.json set them; see docs/operations.md.
option(QUIRE_TESTS "Build the tests" ON)
option(QUIRE_BENCH "Build the benchmarks" ON)
option(QUIRE_EMBED_MODEL
  "Put models/demo (15 MB) into the binary, so that it starts wherever it is copied" ON)
option(QUIRE_PDF
  "Read PDF files with Poppler, whose licence is the GPL; only quire-reader links it" ON)
option(QUIRE_PACKAGE "Make the build installable as a Debian package (packaging/)" OFF)
option(QUIRE_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(QUIRE_CUDA "Build the CUDA backend when nvcc is found" OFF)
set(QUIRE_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address,undefined' or 'thread'")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Frame pointers and line tables stay in release builds:
# a crash on a user's machine must be readable.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -fno-omit-frame-pointer")
# Sanitizer builds optimise enough to keep the model tests quick.
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "QUIRE_FUZZ needs clang: use the fuzz preset")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=undefined -O1 -g1)
  add_link_options(-fsanitize=address,undefined)
endif()

find_program(QUIRE_CCACHE ccache)
if(QUIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${QUIRE_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${QUIRE_CCACHE}")
endif()

# One root for include paths: every include is written from the repository root.
include_directories("${PROJECT_SOURCE_DIR}")
