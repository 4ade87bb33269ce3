#!/usr/bin/env bash
# Installs missing packages on Debian 12 or Ubuntu 24.04, builds, and runs the test suite.
#
#   tests/run.sh             the tests that every change must pass; code for a GPU only if this machine has one
#   tests/run.sh --all       also the long tests: mutants, searches for the tightest instances, wide sweeps; those on a
#                            cluster of Slurm and those in a browser, which are installed for them
#   tests/run.sh -L unit     other arguments go to ctest and select from all tests
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh

everything=(-D KVBOUND_MUTANTS=ON -D KVBOUND_CUDA=ON -U KVBOUND_CUDA_ARCHITECTURES -D CMAKE_CUDA_FLAGS=-Werror=all-warnings)
case "$*" in
  "") chosen=(-LE 'long|slurm|browser') built=(-D KVBOUND_MUTANTS=OFF -D KVBOUND_CUDA=OFF) ;;
  --all) chosen=() built=("${everything[@]}") ;;
  *) chosen=("$@") built=("${everything[@]}") ;;
esac
more_packages=()
if [[ "$*" == --all || "$*" == *slurm* ]]; then
  more_packages+=("${slurm_packages[@]}")
fi
if [[ "$*" == --all || "$*" == *browser* ]]; then
  more_packages+=("${browser_packages[@]}")
fi
if [[ "$*" == --all || "$*" == *long* ]]; then
  more_packages+=("${long_packages[@]}")
fi
if [[ "$*" == "" ]] && nvidia-smi --list-gpus >/dev/null 2>&1; then
  built+=(-D KVBOUND_CUDA=ON -D KVBOUND_CUDA_ARCHITECTURES=native)
fi

install_missing "${build_packages[@]}" "${test_packages[@]}" "${more_packages[@]}"
run cmake --preset release -B build/tests "${built[@]}"
run cmake --build build/tests --parallel "$jobs"
run ctest --test-dir build/tests --output-on-failure --no-tests=error --parallel "$jobs" "${chosen[@]}"
