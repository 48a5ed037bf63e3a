#!/usr/bin/env bash
# Keeps docs/architecture.md true: includes point only upward, each third-party library stays behind
# its one door, no source file is left out of the build, every folder has a README, and lines of
# code have at most 100 columns.
#   check_structure.sh <repository root>
set -uo pipefail
cd "$1" || exit 2
bad=0
complain() { echo "structure: $*"; bad=$((bad + 1)); }
all_folders="base readers kernels cachestore engine ingest fidelity server tests"

# Which folders each folder may include.
declare -A allowed=(
  [base]="base"
  [readers]="readers base"
  [kernels]="kernels base"
  [cachestore]="cachestore base"
  [engine]="engine kernels cachestore base"
  [ingest]="ingest engine cachestore kernels base"
  [fidelity]="fidelity ingest engine cachestore kernels base"
  [server]="server fidelity ingest engine cachestore kernels readers base"
)
sources() { find "$1" -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort; }
for folder in "${!allowed[@]}"; do
  while read -r file; do
    while read -r include; do
      # Highway's own headers want quotes; the doors below watch them.
      case "$include" in hwy/*) continue;; esac
      ok=0
      for a in ${allowed[$folder]}; do case "$include" in "$a"/*) ok=1;; esac; done
      [ $ok = 1 ] ||
        complain "$file includes \"$include\"; $folder may include only: ${allowed[$folder]}"
    done < <(sed -n 's/^#include "\(.*\)"/\1/p' "$file")
  done < <(sources "$folder")
done

here="$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
"$here/check_floors.sh" . || bad=$((bad + 1))
"$here/check_lines.sh" . || bad=$((bad + 1))

# Third-party doors: <header pattern> <where it may appear>.
while read -r pattern door; do
  while read -r hit; do complain "$hit is outside its door ($door)"; done < <(
    # shellcheck disable=SC2086
    grep -rlE "^#include [<\"]($pattern)" --include='*.h' --include='*.cc' --include='*.cu' \
      --include='*.cuh' ${all_folders% *} 2>/dev/null | grep -vE "^($door)")
done <<'DOORS'
rocksdb/ cachestore/disk/rocksdb_
sentencepiece engine/tokenizer/
pcre2 engine/tokenizer/
utf8proc (base/words|engine/(tokenizer|jinja|encoder)/|ingest/document/document_id)
libstemmer base/stems
oneapi/dnnl|dnnl kernels/([a-z]+/)?cpu/
hwy/ kernels/([a-z]+/)?cpu/
cuda_|cublas kernels/cuda/
boost/asio|boost/beast server/
faiss/ ingest/index/vector_index
zlib (fidelity/line_source|server/http/gzip_(reader|writer))
curl/ (server/(hub/transfer|http/http_client)|cachestore/remote/s3_client)
hiredis cachestore/redis/redis_reply
libpq cachestore/catalog/postgres_connection
archive readers/formats/zip_file
histedit server/commands/ask/line_reader
cmark-gfm readers/formats/markdown
gmime readers/formats/mail
libxml/ readers/formats/html
poppler- readers/pdf/
pugixml readers/formats/
seccomp readers/child/sandbox
uchardet|unicode/ readers/formats/text_encoding
spdlog/ server/
CLI/ server/
toml server/
prometheus/ server/
DOORS

# Headers that other folders include show no foreign types.
while read -r header; do
  complain "$header (a public header) includes a third-party library"
done < <(
  libraries='rocksdb|sentencepiece|pcre2|utf8proc|libstemmer|oneapi|dnnl|boost|faiss|hwy|openssl|xxhash|hiredis|curl|libpq'
  grep -lE "^#include <($libraries)" base/*.h kernels/*.h \
    kernels/{rows,matmul,choice,attention}/*.h cachestore/{store,store_stats}.h \
    cachestore/format/{segment,document,key}.h engine/*.h engine/*/*.h ingest/*.h \
    ingest/document/*.h 2>/dev/null)

# A unit test stands at the path of its source.
while read -r folder; do
  [ -d "${folder#tests/unit/}" ] || complain \
    "$folder: tests/unit mirrors the sources, and there is no folder ${folder#tests/unit/}"
done < <(find tests/unit -name '*_test.cc' -printf '%h\n' | sort -u)
while read -r file; do
  complain "$file: a test stands in tests/unit, tests/conformance or tests/scenario," \
    "or with the kinds of tests/README.md"
done < <(
  # shellcheck disable=SC2086
  find $all_folders -name '*_test.cc' |
    grep -vE '^tests/(unit|conformance|scenario|e2e|gpu|support)/')

# Every source is compiled into something. Folders plugs/ are compiled whole (cmake/plugs.cmake). A
# folder of tests may glob its *_test.cc, and with GLOB_RECURSE those of the folders below it.
while read -r file; do
  name="$(basename "$file")"
  dir="$(dirname "$file")"
  found=0
  [ "${dir##*/}" = plugs ] && [ "${name##*.}" = cc ] && continue
  if [[ "$name" = *_test.cc ]]; then
    pattern="$(sed -n 's/.*(GLOB tests .*SOURCE_DIR}\/\([^"/]*_test\.cc\)".*/\1/p' \
      "$dir/CMakeLists.txt" 2>/dev/null)"
    # shellcheck disable=SC2053  # the right side is a pattern
    [ -n "$pattern" ] && [[ "$name" = $pattern ]] && continue
  fi
  while [ "$dir" != . ]; do
    lists="$dir/CMakeLists.txt"
    if [[ "$name" = *_test.cc ]] && grep -qs 'GLOB_RECURSE tests .*/\*_test\.cc' "$lists"; then
      found=1; break
    fi
    if grep -qsE "(^|[ /(])${name//./\\.}([ )]|$)|${name%.*}" "$lists"; then found=1; break; fi
    dir="$(dirname "$dir")"
  done
  [ $found = 1 ] || complain "$file is in no CMakeLists.txt"
done < <(
  # shellcheck disable=SC2086
  find $all_folders bench -name '*.cc' -o -name '*.cu' | sort)

# Every error code a client can meet is met by a test.
while read -r code; do
  grep -rqF "\"$code\"" --include='*.cc' tests/unit/server tests/e2e ||
    complain "no test reaches the error code $code of server/support/problem.cc"
done < <(sed -n 's/^ *{"\([a-z_]*\)", [45][0-9][0-9], .*/\1/p' server/support/problem.cc)

# The table of fuzz targets in tests/README.md has each of them, and no other.
while read -r name; do
  complain "tests/README.md: the table of fuzz targets and tests/fuzz differ in $name"
done < <(comm -3 --output-delimiter='' \
  <(sed -n '/^| what is read | target |$/,/^$/p' tests/README.md | tail -n +3 | cut -d'|' -f3 |
    grep -o '[a-z0-9_]*' | sort) \
  <(find tests/fuzz -name 'fuzz_*.cc' -printf '%f\n' | sed 's/^fuzz_\(.*\)\.cc$/\1/' | sort))

for folder in $all_folders clients configs models bench; do
  [ -f "$folder/README.md" ] || complain "$folder/README.md is missing"
done
[ $bad = 0 ] && echo "structure: fine"
exit $((bad > 0))
