# quire_test(<name> SOURCES a_test.cc ... LIBS quire::x ...)
# One GoogleTest binary, registered with ctest as <name>. Tests may read real data from QUIRE_SHARED_DATA_DIR
# (a folder beside the repository) and must skip visibly where it is missing.
set(QUIRE_SHARED_DATA_DIR "${PROJECT_SOURCE_DIR}/../shared/data" CACHE PATH "Real test data, optional")

function(quire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} quire::warnings GTest::gtest_main GTest::gmock Threads::Threads)
  target_compile_definitions(${name} PRIVATE
    QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUIRE_SHARED_DATA_DIR="${QUIRE_SHARED_DATA_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(QUIRE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 6")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # Tests run side by side: OpenMP threads that spin while they wait would starve each other.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()
