# quire_plugs(TARGET SOCKET HEADER FOLDER) compiles every FOLDER/plugs/*.cc into the target and
# generates `void register_plugs(PlugRegistry<SOCKET>&)`, which calls register_<file name>() of
# each. A new file is enough: the build sees it at the next run.
function(quire_plugs target socket header folder)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/plugs/*.cc")
  set(declared "")
  set(called "")
  foreach(source ${sources})
    get_filename_component(name "${source}" NAME_WE)
    string(APPEND declared "void register_${name}(PlugRegistry<${socket}>& plugs);\n")
    string(APPEND called "  register_${name}(plugs);\n")
  endforeach()
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${folder}/register_plugs.cc")
  file(CONFIGURE OUTPUT "${generated}" @ONLY
    CONTENT "// Generated from the files in ${folder}/plugs.
#include \"${header}\"

namespace quire {

@declared@
void register_plugs(PlugRegistry<${socket}>& plugs) {
@called@}

}  // namespace quire
")
  target_sources(${target} PRIVATE ${sources} "${generated}")
endfunction()
