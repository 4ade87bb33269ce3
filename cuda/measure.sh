#!/usr/bin/env bash
# Fifteen minutes with a GPU: everything prepared before, the most valuable first, results taken by a command.
#
# usage: cuda/measure.sh prepare [options] [FOLDER]   before, without a GPU; FOLDER: emulated
#                                                     programs (build/tests/measure)
#        cuda/measure.sh A|B [options] [FOLDER]       on the machine with a GPU; FOLDER:
#                                                     build/gpu-measure/portable
#        cuda/measure.sh take FOLDER [options]        afterwards; FOLDER: the results of A
#
# prepare goes through these steps and ends at the first that fails:
#
#   headers    those of FlashInfer and CUB, from PyPI: 101 MB, unpacked 882 MB
#   build      the preset gpu-measure: programs for sm_90a alone that need libc and the driver
#   suites     the parity suites whose sources changed since the last measurement:
#              build/gpu-measure/suites.txt
#   rehearsal  all of A and B on the emulation, with small shapes: out/rehearsal
#   model      what the roofline model says of what A measures: build/gpu-measure/h100.json, h200.json
#   size       checkout and programs are small enough to be copied: less than 62 MiB
#   commands   prints what to run on the machine with a GPU
#
# A runs these stages, each as a process of its own under a time limit, together 540 s. After a failure the
# next ones run all the same:
#
#   facts      the machine: GPU, driver, clocks, tools, where cuBLAS is; how many clusters of blocks fit
#   impulse    the primitives: every index of every layout of mma, wgmma, TMA, mbarriers and clusters
#   parity     the changed suites against the reference, a process for each suite
#   anatomy    decode steps by six policies: waited for, queued together; each kernel by itself: bench.jsonl,
#              steps.csv
#   bench      kvbound bench of the main operations, in one process: bench.jsonl
#   libraries  attention and selections by FlashInfer and CUB, judged by kvbound check and only then timed,
#              beside kvbound bench: libraries.jsonl
#   peers      the same operations in PyTorch, and both side by side: torch.json
#   profile    ncu: times, bytes, registers, occupancy and what warps wait for, of 12 kernels: profile.csv
#   memcheck   compute-sanitizer on a small case of every operation of the changed suites
#
# B runs these, together 180 s:
#
#   rest       the suites that A left out
#   sessions   whole compressions and decode steps against the reference
#   repeats    what only hardware gets wrong, and rarely: clusters, alone and beside busy multiprocessors, and
#              dependent launches, very often
#   large      K1, K2 and K3 at 32,768 tokens, on poisoned outputs, against float64, the
#              portable kernel and cuBLAS
#   variants   tile shapes that are right and how fast, or what else --variants names
#   constants  what the roofline model needs to know of a GPU: latencies, launches, the L2 cache's rate
#
# take holds the results to their goals, and writes them and their revision into the GPU's file in
# sim/roofline and the table of cuda/README.md.
#
# options:
#   --only S[,S]       these steps or stages only
#   --suites FILE      the changed suites (default: suites.txt beside FOLDER; without one A runs all suites)
#   --programs DIR     prepare: the programs to be copied (default: build/gpu-measure/portable)
#   --peers DIR        prepare: for the headers (default: build/gpu-measure/peers)
#   --backend B        A, B: cuda (default) or emulated, which tries a run on any
#                      machine: its times say nothing
#   --out DIR          A, B: for the results, at most 7 files (default: A or B in $OUT, else in out/measure);
#                      a folder that has a whole run on a GPU takes no run of another kind
#   --tiny             A, B: small shapes and a few cases of everything
#   --seconds N        A, B: for each stage at most, where that is less than its own limit
#   --variants FILTER  B: tests of kvbound_measure_native (default: TileVariants.*)
#   --model FILE       take: what the model says of this GPU (default:
#                      build/gpu-measure/h100.json or h200.json)
#   --into DIR         take: the checkout that is changed (default: this one)
#   --help
#
# Exit codes: 0 all passed, or were skipped for the reason that the summary states; 1 something failed; 2
# usage; 4 take: results that cannot be taken.
set -uo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
build=$root/build/gpu-measure

# Their stages, and the seconds that each may take.
declare -A verbs=([prepare]="headers build suites rehearsal model size commands"
                  [A]="facts impulse parity anatomy bench libraries peers profile memcheck"
                  [B]="rest sessions repeats large variants constants")
declare -A limits=([facts]=12 [impulse]=15 [parity]=45 [anatomy]=65 [bench]=143 [libraries]=45 [peers]=60 [profile]=95 [memcheck]=60
                   [rest]=55 [sessions]=25 [repeats]=20 [large]=40 [variants]=25 [constants]=15)
# the exit code of a stage that cannot run here; of what is copied
readonly skipped=77 most_bytes=$((62 << 20))

usage_error() {
  printf 'measure.sh: %s; see --help\n' "$1" >&2
  exit 2
}

parse_arguments() {
  verb='' backend=cuda folder='' out='' tiny='' seconds='' only='' stage='' suites='' variants='TileVariants.*'
  programs=$build/portable peers=$build/peers
  while (($#)); do
    case $1 in
      --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$root/cuda/measure.sh"
        exit 0 ;;
      --tiny) tiny=1 && shift && continue ;;
      --backend | --only | --out | --peers | --seconds | --stage | --suites | --programs | --variants)
        (($# > 1)) || usage_error "$1 needs a value" ;;
      -*) usage_error "no option $1" ;;
      *)
        if [[ -z $verb ]]; then verb=$1; elif [[ -z $folder ]]; then folder=$1; else usage_error "more than one folder: $folder and $1"; fi
        shift && continue ;;
    esac
    case $1 in
      --backend) backend=$2 ;;
      --only) only=$2 ;;
      --out) out=$2 ;;
      --peers) peers=$2 ;;
      --seconds) seconds=$2 ;;
      --suites) suites=$2 ;;
      --programs) programs=$2 ;;
      --variants) variants=$2 ;;
      --stage) stage=$2 ;;  # of this script's own: one stage, in this process
    esac
    shift 2
  done
}

check_arguments() {
  local name all
  [[ -n ${verbs[${verb:-none}]:-} ]] || usage_error "'$verb': prepare, A, B or take"
  case $backend in
    cuda) kernels=native ending=_gpu_test ;;
    emulated) kernels=emulated ending=_test ;;
    *) usage_error "--backend $backend: cuda or emulated" ;;
  esac
  read -ra all <<<"${verbs[$verb]}"
  chosen=("${all[@]}")
  [[ -z $only ]] || IFS=, read -ra chosen <<<"$only"
  for name in "${chosen[@]}"; do
    [[ " ${all[*]} " == *" $name "* ]] || usage_error "--only $name: known: ${all[*]}"
  done
  [[ -z $seconds || $seconds =~ ^[1-9][0-9]{0,3}$ ]] || usage_error "--seconds $seconds: a number of seconds"
  [[ -z $suites || $verb == prepare || -r $suites ]] || usage_error "--suites $suites: cannot be read"
  if [[ $verb == prepare ]]; then
    folder=${folder:-$root/build/tests/measure} suites=${suites:-$build/suites.txt}
    return
  fi
  for name in "${all[@]}"; do
    [[ $backend == cuda ]] || limits[$name]=600  # a processor takes longer, the more so beside other work
    [[ -z $seconds ]] || ((seconds >= limits[$name])) || limits[$name]=$seconds
  done
  folder=${folder:-$programs} out=${out:-${OUT:-$root/out/measure}/$verb}
  [[ -x $folder/kvbound ]] || usage_error "no program kvbound in $folder"
  mkdir -p "$out" || usage_error "--out $out: cannot be made"
  [[ -n $suites || ! -r $folder/../suites.txt ]] || suites=$folder/../suites.txt
  folder=$(realpath "$folder") out=$(realpath "$out") suites=${suites:+$(realpath "$suites")}
}

# ---- prepare -----------------------------------------------------------------------------------------------

step_headers() {
  source "$root/cuda/scripts/measure_stages.sh"
  PIP_NO_DEPS=1 PIP_NO_COMPILE=1 "$root/tests/support/environment.sh" "$root/tests/peers/requirements.txt" "$peers" -c '' &&
    [[ -n $(peer_headers) ]] ||
    { echo "error: no headers of FlashInfer and CUB in $peers: this needs PyPI and Python's module venv" && return 1; }
}

step_build() {
  source "$root/cuda/scripts/measure_stages.sh"
  (cd "$root" && cmake --preset gpu-measure -D KVBOUND_PEER_HEADERS="$(peer_headers)" && cmake --build --preset gpu-measure &&
    ctest --preset gpu-measure -R '^portable$') || return
  [[ -x $programs/primitives_gpu_test ]] || { echo "error: no programs for a GPU in $programs: is nvcc missing?" && return 1; }
}

step_suites() {
  mkdir -p "$(dirname "$suites")" && python3 "$root/cuda/scripts/changed_suites.py" >"$suites" || return
  printf '%d suites of parity have changed:\n' "$(wc -l <"$suites")" && cat "$suites"
}

step_rehearsal() {
  local run
  [[ -x $folder/kvbound ]] || { echo "error: no program kvbound in $folder: tests/run.sh builds it" && return 1; }
  [[ ! -r $(dirname "$folder")/CMakeCache.txt ]] || cmake --build "$(dirname "$folder")" --target measure || return
  for run in A B; do
    "$root/cuda/measure.sh" $run --backend emulated --tiny --suites "$suites" --out "$root/out/rehearsal/$run" "$folder" || return
  done
}

step_model() {
  local gpu
  source "$root/cuda/scripts/measure_stages.sh"
  (cd "$root" && cmake --preset release -B build/counted -D KVBOUND_CUDA=OFF -D KVBOUND_COUNTED=ON &&
    cmake --build build/counted --target kvbound) || return
  for gpu in h100 h200; do
    "$root/build/counted/kvbound" bench "${main_operations[@]}" step --policy "$step_policies" --backend emulated --model $gpu \
      --shape llama-3.1-8b --json "$build/$gpu.json" || return
  done
}

# Bytes of what is copied: the checkout as git knows it, without git all but what is built, and the programs.
step_size() {
  local bytes
  bytes=$(cd "$root" && {
    if git rev-parse --git-dir >/dev/null 2>&1; then
      git ls-files -z --cached --others --exclude-standard | xargs -0 stat -c %s -- 2>/dev/null
    else
      find . \( -path ./build -o -path ./out \) -prune -o -type f -printf '%s\n'
    fi
    find "$programs" -type f -printf '%s\n'
  } | awk '{ sum += $1 } END { printf "%.0f", sum }')
  printf 'checkout and programs: %d bytes, of %d\n' "$bytes" "$most_bytes"
  ((bytes < most_bytes)) || { echo "error: too large to be copied" && return 1; }
}

step_commands() {
  local at=${programs#"$root/"} list=${suites#"$root/"}
  cat <<END
Copy the checkout with $at and $list to the machine with a GPU, and run there:
  timeout 560 cuda/measure.sh A --suites $list $at
  timeout 200 cuda/measure.sh B --suites $list $at
With A's results in FOLDER, here:
  cuda/measure.sh take FOLDER
END
}

# ---- A and B -----------------------------------------------------------------------------------------------

# The line of a stage's log that says most: its figure, why it was skipped, or its first failure.
told() {
  local line
  case $1 in
    passed) line=$(grep '^figure: ' "$2" | tail -1) ;;
    skipped) line=$(grep '^skipped: ' "$2" | tail -1) ;;
    *) line=$(grep -m1 -E '^\[  FAILED  \] .+\.|Failure$|^error: |[Ee]rror:|ERROR' "$2") || line=$(tail -1 "$2") ;;
  esac
  line=${line#figure: } && line=${line#skipped: }
  printf '%s' "${line:0:150}"
}

# Runs a stage in a process of its own and adds its line to the summary.
run_stage() {
  local name=$1 verdict status log=$work/$1.log start=$SECONDS
  printf '\n==== %s ====\n' "$name" | tee -a "$out/log.txt"
  timeout --kill-after=5 "${limits[$name]}" bash "$root/cuda/measure.sh" "${passed_on[@]}" --stage "$name" \
    2>&1 | tee "$log" | tee -a "$out/log.txt"
  status=${PIPESTATUS[0]}
  case $status in
    0) verdict=passed ;;
    "$skipped") verdict=skipped ;;
    124 | 137) verdict="no time" ;;
    *) verdict=failed ;;
  esac
  [[ $verdict == passed || $verdict == skipped ]] || all_passed=
  printf '%-10s %-8s %4d s  %s\n' "$name" "$verdict" $((SECONDS - start)) "$(told "$verdict" "$log")" >>"$out/summary.txt"
}

# The folder with cuBLAS: the toolkit's, or that of Python's packages, where PyTorch has it.
find_cublas() {
  local packages
  packages=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
  { compgen -G '/usr/local/cuda*/lib64/libcublas.so.1[0-9]' || compgen -G "$packages/nvidia/*/lib/libcublas.so.1[0-9]"; } |
    sed -n '1s,/[^/]*$,,p'
}

run_stages() {
  local name held cublas=''
  held=$(head -1 "$out/summary.txt" 2>/dev/null)
  for name in A B; do  # a whole run on a GPU is replaced by another such one alone
    [[ $held != "measure.sh $name, --backend cuda, "[0-9]*": ${verbs[$name]}" || $name$backend$tiny$only == "${verb}cuda" ]] ||
      usage_error "--out $out: has a whole run of $name on a GPU, which stays: take another folder"
  done
  [[ $backend != cuda ]] || cublas=$(find_cublas)
  work=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-measure-XXXXXX") all_passed=1
  trap 'rm -rf "$work"' EXIT
  export KVBOUND_MEASURE_WORK=$work KVBOUND_MEASURE_CUBLAS=$cublas KVBOUND_REQUIRE_GPU=1 OMP_WAIT_POLICY=passive
  rm -f "$out"/{log.txt,torch.json,libraries.jsonl,steps.csv,profile.csv}
  [[ $verb != A ]] || : >"$out/bench.jsonl"
  printf 'measure.sh %s, --backend %s%s, %s: %s\n' "$verb" "$backend" "${tiny:+, --tiny}" "$(date -u +%F)" "${chosen[*]}" \
    >"$out/summary.txt"
  for name in ${verbs[$verb]}; do
    [[ " ${chosen[*]} " != *" $name "* ]] || run_stage "$name"
  done
  printf '\n'
  cat "$out/summary.txt"
  [[ -n $all_passed ]]
}

[[ ${1:-} != take ]] || exec python3 "$root/cuda/scripts/take_measurement.py" "${@:2}"
passed_on=("$@")
parse_arguments "$@"
check_arguments
if [[ -n $stage ]]; then
  work=$KVBOUND_MEASURE_WORK cublas=$KVBOUND_MEASURE_CUBLAS SECONDS=0
  source "$root/cuda/scripts/measure_stages.sh"
  "stage_$stage"
elif [[ $verb == prepare ]]; then
  for name in "${chosen[@]}"; do
    printf '\n==== %s ====\n' "$name"
    "step_$name" || { printf 'measure.sh: prepare: %s failed\n' "$name" >&2 && exit 1; }
  done
else
  run_stages
fi
