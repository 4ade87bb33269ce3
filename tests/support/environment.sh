#!/usr/bin/env bash
# Runs a Python script in a virtual environment with packages from PyPI.
#
#   tests/support/environment.sh REQUIREMENTS FOLDER SCRIPT [ARGUMENT...]
#
# FOLDER is the environment's. It is made if it is missing or of other REQUIREMENTS, which are a file of
# pip's; those of traces/scripts take 6 GB and some minutes. KVBOUND_HF_PYTHON names the interpreter to make
# it with (default: python3; 3.11 was tried).
set -euo pipefail
requirements=$1
folder=$2
shift 2

mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9  # tests that run side by side make it once
if ! cmp -s "$requirements" "$folder/requirements.txt"; then
  rm -rf "$folder"
  "${KVBOUND_HF_PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
  cp "$requirements" "$folder/requirements.txt"  # last: a sign that all of it is there
fi
flock -u 9
exec "$folder/bin/python" "$@"
