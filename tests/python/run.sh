#!/usr/bin/env bash
# The package as a newcomer gets it: built by pip into an environment of its own, then its tests.
#
# usage: run.sh [--asan] FOLDER [PYTEST_ARGUMENT...]
#
#   FOLDER   for the environment, kept for the next time
#   --asan   with AddressSanitizer, and by default 10,000 fuzzed arguments instead of the other tests
set -euo pipefail
source=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
asan=0
[[ ${1:-} != --asan ]] || { asan=1 && shift; }
environment=$(realpath -m "$1")
shift
[[ -x $environment/bin/pip ]] || python3 -m venv "$environment"
export PATH=$environment/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1

# install ARGUMENT...: what builds the package is in this environment, too, where ccache finds it again.
install() {
  pip install --quiet "$@" || {
    echo "run.sh: pip failed: the package for Python is not built, or PyPI not reached, which has what that needs" >&2
    exit 1
  }
}
mapfile -t requirements < <(python -c 'import sys, tomllib; print(*tomllib.load(open(sys.argv[1], "rb"))["build-system"]["requires"], sep="\n")' \
  "$source/sim/python/pyproject.toml")
install "${requirements[@]}"
options=()
if ((asan)); then
  options=(-C build-dir="$source/build/python-asan" -C cmake.build-type=None
           -C cmake.define.CMAKE_CXX_FLAGS="-Og -g1 -fno-omit-frame-pointer -fsanitize=address -fPIC" -C install.strip=false -C build.targets=_native)
fi
install --no-build-isolation "${options[@]}" "$source/sim/python[test]"
if ((asan)); then
  (($#)) || set -- -k fuzz
  set -- --capture=no "$@"  # otherwise what AddressSanitizer says is lost
  # Python's memory is not freed at its end, and NumPy asks for more than there is
  export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc KVBOUND_FUZZED_ARGUMENTS=${KVBOUND_FUZZED_ARGUMENTS:-10000}
  LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
  export LD_PRELOAD
fi
exec python -m pytest -q -p no:cacheprovider "$source/tests/python" "$@"
