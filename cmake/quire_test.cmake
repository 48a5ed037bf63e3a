# quire_test(<name> SOURCES a_test.cc ... LIBS quire::x ... [LABELS l] [TIMEOUT s] [WHOLE]
#            [COMPUTES])
# One GoogleTest binary. Tests may read real data from QUIRE_SHARED_DATA_DIR (a folder beside the
# repository) and must skip visibly where it is missing.
#
# ctest knows each case of it as <name>.<Suite>.<Case> and runs it in a process of its own, or with
# WHOLE the program as <name>. WHOLE is for programs whose fixtures make what many cases use (a
# model, a service), or with very many cases: those of which processes for single cases take more
# than a second longer, all together, than one process for all. Sanitizers make every start of a
# process slow, so that under them all programs are whole.
#
# Most tests wait for what they test, so a release build compiles them with -O1, which takes less
# time than -O2. COMPUTES is for programs whose own sources compute much.
include(GoogleTest)
set(QUIRE_SHARED_DATA_DIR "${PROJECT_SOURCE_DIR}/../shared/data"
  CACHE PATH "Real test data, optional")

function(quire_test name)
  cmake_parse_arguments(ARG "WHOLE;COMPUTES" "TIMEOUT;LABELS" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name}
    PRIVATE ${ARG_LIBS} quire::warnings GTest::gtest_main GTest::gmock Threads::Threads)
  target_compile_definitions(${name} PRIVATE
    QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUIRE_SHARED_DATA_DIR="${QUIRE_SHARED_DATA_DIR}")
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT ARG_COMPUTES)
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(QUIRE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 6")
  endif()
  # Tests run side by side: OpenMP threads that spin while they wait would starve each other.
  set(properties TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "OMP_WAIT_POLICY=passive")
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(ARG_WHOLE OR QUIRE_SANITIZE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES ${properties})
  else()
    # Asks the program for its cases when ctest runs, not when it is built. Parameters count as
    # GoogleTest counts them: their values would make long names that --gtest_filter does not know.
    gtest_discover_tests(${name} TEST_PREFIX "${name}." PROPERTIES ${properties}
      NO_PRETTY_TYPES NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
