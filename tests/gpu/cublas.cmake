# CUDA::cublasLt where the toolkit has none: that of NVIDIA's package for Python, which PyTorch
# brings along. QUIRE_CUBLAS_ROOTS: folders to look in instead, each with include/ and lib/.
find_path(QUIRE_CUBLAS_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(TARGET CUDA::cublasLt AND QUIRE_CUBLAS_INCLUDE AND NOT QUIRE_CUBLAS_ROOTS)
  message(STATUS "cuBLASLt of the toolkit")
  return()
endif()
set(roots ${QUIRE_CUBLAS_ROOTS})
if(NOT roots)
  execute_process(
    COMMAND python3 -c [[
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
folders = spec.submodule_search_locations if spec else []
print(";".join(root for folder in folders for root in sorted(glob.glob(folder + "/*"))))
]]
    OUTPUT_VARIABLE roots
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
endif()
foreach(root ${roots})
  file(GLOB libraries "${root}/lib/libcublasLt.so*" "${root}/lib64/libcublasLt.so*")
  if(NOT libraries OR NOT EXISTS "${root}/include/cublasLt.h")
    continue()
  endif()
  list(GET libraries 0 library)
  message(STATUS "cuBLASLt of ${root}")
  add_library(quire_cublaslt SHARED IMPORTED GLOBAL)
  set_target_properties(quire_cublaslt PROPERTIES
    IMPORTED_LOCATION "${library}"
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include")
  if(TARGET CUDA::cublasLt)
    # Kept by the toolkit's name, which other files link.
    set_target_properties(CUDA::cublasLt PROPERTIES
      IMPORTED_LOCATION "${library}" INTERFACE_INCLUDE_DIRECTORIES "${root}/include")
  else()
    add_library(CUDA::cublasLt ALIAS quire_cublaslt)
  endif()
  return()
endforeach()
message(FATAL_ERROR
  "cuBLASLt was found neither in the toolkit nor among python3's packages (nvidia-cublas)")
