#!/usr/bin/env bash
# Installs missing packages on Debian 12 or Ubuntu 24.04, builds, and runs the test suite.
#
#   tests/run.sh             the tests that every change must pass; code for a GPU
#                            only if this machine has one
#   tests/run.sh --all       all tests: also the long ones, the mutants, those of --counted,
#                            --kernels and --races, those on a cluster of Slurm, those in a browser,
#                            proofs in Coq and those of the package for Python, all of which are
#                            installed for them
#   tests/run.sh --counted   those of kernels that count what they do: predictions of times on a GPU
#   tests/run.sh --kernels   those of the kernels as nvcc compiles them, where there is nvcc
#   tests/run.sh --races     commands under ThreadSanitizer, compiled by clang
#   tests/run.sh -L unit     other arguments go to ctest and select from the tests that are not of
#                            --counted, --kernels or --races
#
# tests/README.md says what there is and how long it takes. Each of the four kinds has a
# build folder of its own.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh

# build_and_test FOLDER TARGET CONFIGURATION... -- CTEST_ARGUMENTS...: by the preset
# `release`, or the one in $preset
build_and_test() {
  local folder=build/$1 target=$2 configuration=()
  shift 2
  while [[ $1 != -- ]]; do configuration+=("$1") && shift; done
  run cmake --preset "${preset:-release}" -B "$folder" "${configuration[@]}"
  run cmake --build "$folder" --parallel "$jobs" --target "$target"
  local tests=(ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$jobs" --output-junit times.xml "${@:2}")
  printf '\n$ %s\n' "${tests[*]}" >&2
  local status=0
  "${tests[@]}" || status=$?
  echo "The slowest, in seconds:"
  sed -n 's/.*<testcase name="\([^"]*\)".* time="\([0-9.]*\)".*/\2 \1/p' "$folder/times.xml" | sort -rn | head -10
  ((status == 0)) || fail "tests failed" "$status"
}

run_tests() { build_and_test tests all "${for_its_gpu[@]}" -- "$@"; }

run_counted() { build_and_test counted counted_tests -D KVBOUND_CUDA=OFF -D KVBOUND_COUNTED=ON -- -L counted; }

# Kernels for both generations of GPUs, which needs none.
run_kernels() {
  if ! command -v "${CUDACXX:-nvcc}" >/dev/null; then
    echo "No nvcc: kernels are not compiled for GPUs." >&2
    return
  fi
  build_and_test kernels kernel_tests -D CMAKE_CUDA_FLAGS=-Werror=all-warnings -- -L kernels
}

run_races() { preset=tsan build_and_test tsan race_tests -- -L races; }

packages=("${build_packages[@]}" "${test_packages[@]}")
[[ "$*" != --all && "$*" != *slurm* ]] || packages+=("${slurm_packages[@]}")
[[ "$*" != --all && "$*" != *coq* ]] || packages+=("${coq_packages[@]}")
[[ "$*" != --all && "$*" != *browser* ]] || packages+=("${browser_packages[@]}")
[[ "$*" != --all && "$*" != *python* ]] || packages+=("${python_packages[@]}")
[[ "$*" != --all && "$*" != --races ]] || packages+=("${race_packages[@]}")
[[ "$*" != --all && "$*" != --kernels ]] || packages+=("${kernel_packages[@]}")
install_missing "${packages[@]}"
fetch_d3

case "$*" in
  "") run_tests -LE 'long|mutants|slurm|browser|python|coq' ;;
  --all) run_tests && run_counted && run_kernels && run_races ;;
  --counted) run_counted ;;
  --kernels) run_kernels ;;
  --races) run_races ;;
  *) run_tests "$@" ;;
esac
