#!/usr/bin/env bash
# A PDF of 300 pages in an 8K window: whether questions are answered from the right page, and how
# soon, on SmolLM2-135M-Instruct (scripts/get_model.sh smollm2).
#   bench/long_pdf.sh --data FOLDER [--questions N] [--rounds STRATEGIES] [--encoder FOLDER]
#                     [--quire FILE] [--work FOLDER] [--lazy]
# FOLDER holds xquad_en.json.gz and 2wiki_corpus6119.jsonl.gz: each of XQuAD's 240 paragraphs begins
# a page, other paragraphs fill the pages up, and each article is a chapter. N questions (24) on as
# many pages are asked by every strategy (recompute,reuse,auto), 'recompute' being what the first
# question costs without a cache. --encoder finds by meaning, too. --work keeps the book and its KV,
# so that the same command goes on after an interruption. --lazy computes KV only of the chunks that
# are asked about, each alone, which is quicker on a slow machine. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
case " $* " in *' --data '*) ;; *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
cd "$ROOT"
case " $* " in
  *' --quire '*) quire=() ;;
  *)
    cmake --preset release >/dev/null &&
      cmake --build --preset release --target quire --target quire-reader >&2
    quire=(--quire build/release/quire) ;;
esac
scripts/get_model.sh smollm2 >&2
exec python3 bench/long_pdf.py --model models/smollm2 "${quire[@]}" "$@"
