#!/usr/bin/env bash
# Retrieval of Quire beside rank-bm25 and sentence-transformers on the same questions: recall@5 and
# nDCG@10, and tokens a second of the encoders.
#   bench/retrieval.sh --data FOLDER [--encoder FOLDER] [--sets NAMES] [--questions N]
#                      [--half report|choose] [--without-speed]
# FOLDER holds hotpotqa_train100, 2wikimultihop_train500, musique_train100, nq_open_oracle2655
# (.jsonl.gz) and xquad_en.json.gz; the paragraphs of a set are its corpus. Questions of odd rank,
# counted from 0, are reported; --half choose takes the others, for whoever chooses anything. The
# encoder is all-MiniLM-L6-v2 (scripts/get_model.sh minilm) unless named. Installs rank-bm25,
# sentence-transformers and torch into build/retrieval from the package index (QUIRE_PEERS: another
# environment).
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
case " $* " in *' --data '*) ;; *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
cd "$ROOT"
cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
environment="${QUIRE_PEERS:-$ROOT/build/retrieval}"
if [ ! -x "$environment/bin/python" ]; then python3 -m venv "$environment" >&2; fi
"$environment/bin/python" -c "import rank_bm25, sentence_transformers" 2>/dev/null ||
  "$environment/bin/pip" install -q rank-bm25==0.2.2 sentence-transformers torch >&2
[ -f models/minilm/model.safetensors ] || scripts/get_model.sh minilm >&2
exec "$environment/bin/python" bench/retrieval.py "$@"
