#!/usr/bin/env bash
# The package as a newcomer gets it: built by pip into an environment of its own, then its tests.
#
# usage: run.sh FOLDER [PYTEST_ARGUMENT...]      FOLDER: for the environment, kept for the next time
set -euo pipefail
source=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
environment=$(realpath -m "$1")
shift
[[ -x $environment/bin/pip ]] || python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check "$source/sim/python[test]"
PATH=$environment/bin:$PATH exec "$environment/bin/python" -m pytest -q -p no:cacheprovider "$source/tests/python" "$@"
