#!/usr/bin/env bash
# Search by meaning over up to a million chunks: time to index and to open again, time and recall of
# searches in memory and past it, time of a change.
#   bench/vectors.sh --data FOLDER [--work FOLDER] [--sizes N,N,...] [--memory-mib N] [--dir FOLDER]
#                    [--half report|choose]
# FOLDER holds 2wiki_corpus6119 and 2wikimultihop_train500 (.jsonl.gz). Its paragraphs and questions
# are embedded by all-MiniLM-L6-v2 (scripts/get_model.sh minilm); chunks beyond them are mixtures of
# two. --work keeps the embedded texts. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
data=; work=; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --data) data="$(realpath "${2:?--data needs a folder}")"; shift ;;
    --work) work="$(realpath -m "${2:?--work needs a folder}")"; shift ;;
    --sizes|--memory-mib|--dir|--half) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$data" ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$ROOT"
cmake --preset release >/dev/null
cmake --build --preset release --target quire quire_vectors_bench >&2
[ -f models/minilm/model.safetensors ] || scripts/get_model.sh minilm >&2
if [ -z "$work" ]; then work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work"
if [ ! -f "$work/done" ]; then
  python3 bench/vectors.py --data "$data" --out "$work" >&2
  touch "$work/done"
fi
program=(build/release/bench/quire_vectors_bench --vectors "$work/paragraphs.f32")
"${program[@]}" --questions "$work/questions.f32" ${more[@]+"${more[@]}"}
