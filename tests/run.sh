#!/usr/bin/env bash
# Installs missing packages on Debian 12 or Ubuntu 24.04, builds, and runs the test suite.
#
#   tests/run.sh             the tests that every change must pass
#   tests/run.sh --all       also the long tests: mutants, searches for the tightest instances, wide sweeps
#   tests/run.sh -L unit     other arguments go to ctest and select from all tests
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh

case "$*" in
  "") chosen=(-LE long) ;;
  --all) chosen=() ;;
  *) chosen=("$@") ;;
esac

# Kernels for this machine's GPU. On a machine without one a long test checks that the kernels compile.
cuda=(-D KVBOUND_CUDA=ON -D KVBOUND_CUDA_ARCHITECTURES=90a-real)
if nvidia-smi --list-gpus >/dev/null 2>&1; then
  cuda=(-D KVBOUND_CUDA=ON -D KVBOUND_CUDA_ARCHITECTURES=native)
elif [[ "$*" == "" ]]; then
  cuda=(-D KVBOUND_CUDA=OFF)
fi

install_missing "${build_packages[@]}" "${test_packages[@]}"
run cmake --preset release -B build/tests "${cuda[@]}"
run cmake --build build/tests --parallel "$(nproc)"
run ctest --test-dir build/tests --output-on-failure --no-tests=error --parallel "$(nproc)" "${chosen[@]}"
