# cmake -DOUT=x.cc -DHEADER=a/b.h -DTYPE=Fragment -DFUNCTION=fragments -DFILES="a.json|b.json" \
#   -P embed_texts.cmake
# Writes FUNCTION(), which gives the files as std::vector<TYPE> of {name, text}.
string(REPLACE "|" ";" files "${FILES}")
string(CONCAT text
  "// Made by cmake/embed_texts.cmake.\n#include \"${HEADER}\"\n\nnamespace quire {\n\n"
  "const std::vector<${TYPE}>& ${FUNCTION}() {\n"
  "  static const std::vector<${TYPE}> files = {\n")
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" content)
  string(APPEND text "      {\"${name}\", R\"__TEXT__(${content})__TEXT__\"},\n")
endforeach()
string(APPEND text "  };\n  return files;\n}\n\n}  // namespace quire\n")
file(WRITE "${OUT}" "${text}")
