#!/usr/bin/env bash
# Installs what is missing on a Debian 12 or Ubuntu 24.04, builds, and runs the whole test suite.
# Arguments go to ctest: tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh

install_missing "${build_packages[@]}" "${test_packages[@]}"
run cmake --preset release -B build/tests
run cmake --build build/tests --parallel "$(nproc)"
run ctest --test-dir build/tests --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
