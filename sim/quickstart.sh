#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 to a first replay: installs missing packages, builds, and replays two
# shipped samples: with SnapKV, with and without CriticalKV; of a model of 135 million parameters also without
# pooling and with KeepKV. What that needs is built first. Then compares the CUDA kernels with the reference,
# on a GPU or emulated. The tables go to stdout, everything else to stderr. Last, makes a page of figures of
# all that, whose path is the last line on stdout.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=sim/packages.sh
source sim/packages.sh
exec 3>&1 >&2

cat <<'TEXT'
This takes about 4 minutes on two quiet cores, 2 of them until the first table; a fresh Debian 12 gets 91 packages of 640 MB,
and the build takes 420 MB.
TEXT
install_missing "${build_packages[@]}"
fetch_d3
run cmake --preset release -B build/quickstart -D KVBOUND_TESTS=OFF "${for_its_gpu[@]}"
run cmake --build build/quickstart --parallel "$jobs" --target kvbound_replay
results=build/quickstart/results
mkdir -p "$results"
run build/quickstart/kvbound_replay replay traces/samples/pocket-gqa.safetensors \
  --policy snapkv,snapkv+critical --base snapkv --budget 2.5%,5%,10%,20%,40% --json $results/pocket.json >&3
echo >&3
host=snapkv:window=16
run build/quickstart/kvbound_replay replay traces/samples/smollm2-135m.safetensors \
  --policy $host,$host:pool=1,$host:pool=1+critical,$host:pool=1+keepkv --base $host --budget 2.5%,10% \
  --columns entries,perturbation,relative,layer-relative,bound,violations,kept-mass,recall,improved-heads \
  --json $results/smollm2.json >&3

run cmake --build build/quickstart --parallel "$jobs"
# On a GPU if there is one, otherwise in the emulation: without a GPU the first command
# exits with 5 before any work.
agreement=(build/quickstart/kvbound replay traces/samples/pocket-gqa.safetensors
           --policy "snapkv,snapkv+critical" --budget 20% --json "$results/agreement.json" --backend)
echo >&3
"${agreement[@]}" reference,cuda >&3 || {
  status=$?
  ((status == 5)) || fail "the replay on the GPU failed with status $status" "$status"
  run "${agreement[@]}" reference,emulated >&3
}

for trace in pocket-gqa smollm2-135m; do
  for study in recall predict; do
    run build/quickstart/kvbound $study traces/samples/$trace.safetensors --json "$results/$study-$trace.json" >/dev/null
  done
done
run build/quickstart/kvbound prove --cases 400 --json "$results/prove.json" >/dev/null
printf '\nFigures of all that, to be opened in a browser:\n' >&3
run build/quickstart/kvbound report "$results"/{pocket,smollm2,agreement}.json \
  "$results"/{recall,predict}-{pocket-gqa,smollm2-135m}.json "$results/prove.json" -o "$PWD/build/quickstart/report.html" >&3

printf '\nThe program is %s; next: its --help, traces/samples/README.md, and tests/run.sh for all the tests.\n' \
  "$PWD/build/quickstart/kvbound"
