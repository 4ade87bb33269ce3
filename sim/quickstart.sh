#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 to a first replay: installs missing packages, builds, and replays two shipped
# samples: with SnapKV, with and without CriticalKV; of a model of 135 million parameters also without pooling and with
# KeepKV. Then compares the CUDA kernels with the reference, on a GPU or emulated. The tables go to stdout, everything
# else to stderr.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh
exec 3>&1 >&2

install_missing "${build_packages[@]}"
run cmake --preset release -B build/quickstart -DKVBOUND_TESTS=OFF
run cmake --build build/quickstart --parallel "$jobs"
run build/quickstart/kvbound replay traces/samples/pocket-gqa.safetensors \
  --policy snapkv,snapkv+critical --base snapkv --budget 2.5%,5%,10%,20%,40% >&3
echo >&3
host=snapkv:window=16
run build/quickstart/kvbound replay traces/samples/smollm2-135m.safetensors \
  --policy $host,$host:pool=1,$host:pool=1+critical,$host:pool=1+keepkv --base $host --budget 2.5%,10% \
  --columns entries,perturbation,relative,layer-relative,bound,violations,kept-mass,recall,improved-heads >&3

# On a GPU if there is one, otherwise in the emulation: without a GPU the first command exits with 5 before any work.
agreement=(build/quickstart/kvbound replay traces/samples/pocket-gqa.safetensors
           --policy "snapkv,snapkv+critical" --budget 20% --backend)
echo >&3
"${agreement[@]}" reference,cuda >&3 || {
  status=$?
  ((status == 5)) || fail "the replay on the GPU failed with status $status" "$status"
  run "${agreement[@]}" reference,emulated >&3
}

printf '\nThe program is %s; next: its --help, traces/samples/README.md, and tests/run.sh for all the tests.\n' \
  "$PWD/build/quickstart/kvbound"
