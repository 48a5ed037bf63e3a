#!/usr/bin/env bash
# What a choice of KV keeps of long documents: bench/long_text.sh with --choices and 150 questions.
#   bench/long_choices.sh --data FOLDER [--questions N] [--work FOLDER] [--quire FILE]
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/long_text.sh" --choices --questions 150 "$@"
