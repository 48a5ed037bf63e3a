# quire::warnings: the warnings every target of ours is compiled with.
add_library(quire_warnings INTERFACE)
add_library(quire::warnings ALIAS quire_warnings)
target_compile_options(quire_warnings
  INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers)
option(QUIRE_WERROR "Treat every warning as an error, as continuous integration does" OFF)
if(QUIRE_WERROR)
  target_compile_options(quire_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
