# Every third-party library, found once. Each is linked by the one folder that owns its door
# (docs/architecture.md).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(PkgConfig REQUIRED)

# RocksDB's package file leaves its own FindTBB and Findzstd in the module path.
set(quire_saved_module_path "${CMAKE_MODULE_PATH}")
find_package(RocksDB CONFIG REQUIRED)
set(CMAKE_MODULE_PATH "${quire_saved_module_path}")

find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS json url)
if(QUIRE_BENCH)
  find_package(dnnl CONFIG REQUIRED)  # only measured against
endif()
find_package(hwy CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL 7.85 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
set(BLA_VENDOR OpenBLAS)
find_package(faiss CONFIG REQUIRED)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
if(QUIRE_CUDA)
  include(cuda)
endif()
