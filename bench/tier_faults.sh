#!/usr/bin/env bash
# Whether any query is slower than 1.5 times its own recomputation while a shared tier or the
# catalog misbehaves.
#   bench/tier_faults.sh --data FOLDER [--quick] [--samples N] [--tokens T] [--cases TEXT]
#                        [--seed N] [--model FOLDER] [--s3 PROGRAM] [--quire FILE] [--work FOLDER]
# FOLDER holds xquad_en.json.gz. Two services have their documents from one PostgreSQL and share KV
# through Redis and S3; the last case has a Redis cluster. For each case, the first service reads N
# documents (10) of about T tokens (1500) and shares their KV. Then a server fails, or the network
# between it and the second service: it is late, silent or cut. The second service, which has none
# of that KV, gets one question over each document, with the strategy 'exact', and then twice with
# 'recompute'. A ratio is the time to the first token with the one by that with the other.
# A fault lasts for all questions of its case, so later ones may find that a tier is left alone;
# 'first' is the ratio of the first question. 'max_total' compares whole requests by the client's
# clock. 'max_healed' compares with 'recompute' after the fault, which it cannot have slowed down.
# --cases takes only those whose names have this text, --work keeps stores and logs. Without the
# program of S3 (build/s3-server/bin/moto_server) its cases are left out, and that is said. Fails if
# an answer is not that of 'recompute', or if there is none. Prints {"settings", "rows", "worst"}.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
s3="$ROOT/build/s3-server/bin/moto_server"; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) more+=(--samples 2) ;;
    --model) model="$(realpath "${2:?--model needs a folder}")"; shift ;;
    --s3) s3="$(realpath -m "${2:?--s3 needs a program}")"; shift ;;
    --samples|--cases|--tokens|--seed) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
python3 bench/tier_faults.py --binary "$quire" --model "$model" --data "$data" --work "$work" \
  --s3 "$s3" ${more[@]+"${more[@]}"}
