#!/usr/bin/env bash
# The first half hour on a machine with a GPU: is every kernel right, and how fast is it?
#
# usage: cuda/first_run.sh [options] [FOLDER]
#
# FOLDER holds the portable programs (default: build/gpu-portable/portable). Stages run in this order, each as a process of
# its own under a time limit; after a failure the next ones run all the same:
#
#   facts      the machine: GPU, driver, tools, and where cuBLAS is
#   impulse    the primitives: every index of every layout of mma, wgmma, TMA, mbarriers and clusters
#   parity     every operation against the reference, a process for each suite of tests; whole sessions against it
#   large      K1, K2 and K3 at 32,768 tokens, on poisoned outputs, against float64, the portable kernel and cuBLAS
#   constants  what the roofline model needs to know of a GPU: latencies, launches, the L2 cache's rate
#   sanitizer  compute-sanitizer on a small case of every operation: memcheck; racecheck and synccheck if there is time
#   bench      kvbound bench, a process for each operation                                                (bench.jsonl)
#   profile    ncu: duration, bytes, sectors, bank conflicts, registers, occupancy of the main kernels    (profile.csv)
#   sweep      tile shapes of K1 and K2: first whether they are right, then how fast
#   torch      the same operations in PyTorch, and both side by side                                      (torch.json)
#
# options:
#   --backend B        cuda (default) or emulated, which tries the script on any machine: its times say nothing
#   --only S[,S]       these stages only
#   --out DIR          for the results, at most 8 files (default: $OUT, else out/first_run); summary.txt and log.txt among them
#   --tiny             small shapes and a few cases of everything
#   --seconds N        for each stage at most, where that is less than its own limit
#   --counters FILE    the emulation's counters, as `kvbound bench --backend emulated --model ... --json FILE` writes them:
#                      the profile is set against them
#   --help
#
# Exit codes: 0 all stages passed or were skipped for the reason that the summary states; 1 a stage failed; 2 usage.
#
# A test program that hangs is stopped after a share of its stage's time, and the last test that it began is printed.
#
# Together the stages take 25 minutes at most. Where a command may take 10, these three cover all of them:
#
#   cuda/first_run.sh --only facts,impulse,parity,large,constants
#   cuda/first_run.sh --only sanitizer,bench
#   cuda/first_run.sh --only profile,sweep,torch
#   cuda/first_run.sh --backend emulated --tiny build/tests/first_run      # to try it, without a GPU
set -uo pipefail
source_folder=$(dirname "$(dirname "$(realpath "$0")")")

# A stage, and the seconds that it may take.
stages=(facts impulse parity large constants sanitizer bench profile sweep torch)
declare -A limits=([facts]=40 [impulse]=60 [parity]=240 [large]=180 [constants]=20 [sanitizer]=200 [bench]=360 [profile]=180
                   [sweep]=90 [torch]=130)
readonly skipped=77  # the exit code of a stage that cannot run here

# A small case of every operation.
small_cases='*UnderEverySchedule*:AttentionParity/*.DoesWithoutLogits:ObcacheParity/*.WindowMatchesReferenceAcrossGroups'
small_cases+=':ObcacheParity/*.StepMatchesReferenceAcrossSizesAndRaggedHeads:DominantEntriesParity.*'
small_cases+=':CausalAttentionParity/*.DoesWithoutLogits'
small_cases+=':ScoreEmaParity/*.MatchesReferenceAcrossSizes:ObserveScoresParity.Follows*:ReplaceScoresParity.*'
small_cases+=':ClusterWeightsParity.*:AppendParity/*.Writes*:AppendNumbersParity.*:CompactNumbersParity.Moves*'
small_cases+=':StepChangesParity/*.KeepsWhat*:CompactPositionsParity.*:UpdateScoresParity.Takes*:PackParity.CopiesEveryByte*'
small_cases+=':SnapKvParity/*.MatchesReferenceAcrossGroups:PoolParity.Shows*:ValueSpaceParity/*.MatchesReferenceAcrossGroups'
small_cases+=':GroupReductionParity.MatchesReference/mean:Wgmma*:-*/F16.*:EvictCriticalParity.AClusterWithAdaptive*'

impulse_tests=(fragments primitives roofline mbarrier bulk_copy warpgroup_mma cluster)
# In the order of their importance: time may run out.
main_operations=(attention projected-value-norms window-attention compact select-critical nearest-keys compress step
                 attention-compressed window-log-sum-exp window-change-scores select-top merged-keys weighted-means)
# An operation, and how the names of those of its kernels begin of which two launches are profiled.
profiled=("attention attention_" "projected-value-norms norms_" "window-attention window_attention_"
          "window-log-sum-exp window_log_sum_exp_" "compact compact_" "select-critical select_"
          "nearest-keys nearest_keys_" "window-change-scores window_change_scores_" "select-top select_"
          "weighted-means weighted_")
torch_operations=(attention attention-compressed window-attention projected-value-norms select-top select-critical compact
                  nearest-keys compress step)

usage_error() {
  printf 'first_run.sh: %s; see --help\n' "$1" >&2
  exit 2
}

parse_arguments() {
  backend=cuda folder='' out=${OUT:-$source_folder/out/first_run} tiny='' counters='' seconds='' chosen=("${stages[@]}") stage=''
  while (($#)); do
    case $1 in
      --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$source_folder/cuda/first_run.sh"
        exit 0 ;;
      --tiny) tiny=1 && shift && continue ;;
      --backend | --only | --out | --counters | --seconds | --stage) (($# > 1)) || usage_error "$1 needs a value" ;;
      -*) usage_error "no option $1" ;;
      *)
        [[ -z $folder ]] || usage_error "more than one folder: $folder and $1"
        folder=$1 && shift && continue ;;
    esac
    case $1 in
      --backend) backend=$2 ;;
      --only) IFS=, read -ra chosen <<<"$2" ;;
      --out) out=$2 ;;
      --counters) counters=$2 ;;
      --seconds) seconds=$2 ;;
      --stage) stage=$2 ;;  # of this script's own: one stage, in this process
    esac
    shift 2
  done
  folder=${folder:-$source_folder/build/gpu-portable/portable}
}

check_arguments() {
  local name
  case $backend in
    cuda) build=native suffix=_gpu_test ;;
    emulated) build=emulated suffix=_test ;;
    *) usage_error "--backend $backend: cuda or emulated" ;;
  esac
  ((${#chosen[@]})) || usage_error "--only: no stage"
  for name in "${chosen[@]}"; do
    [[ -n ${limits[$name]:-} ]] || usage_error "--only $name: known stages: ${stages[*]}"
  done
  [[ -z $counters || -r $counters ]] || usage_error "--counters $counters: cannot be read"
  [[ -z $seconds || $seconds =~ ^[1-9][0-9]{0,3}$ ]] || usage_error "--seconds $seconds: a number of seconds"
  for name in "${stages[@]}"; do
    [[ $backend == cuda ]] || limits[$name]=$((3 * limits[$name]))  # processors take longer, the more so beside other work
    [[ -z $seconds ]] || ((seconds >= limits[$name])) || limits[$name]=$seconds
  done
  [[ -x $folder/kvbound ]] || usage_error "no program kvbound in $folder"
  mkdir -p "$out" || usage_error "--out $out: cannot be made"
  folder=$(realpath "$folder") out=$(realpath "$out")
  [[ -z $counters ]] || counters=$(realpath "$counters")
}

# ---- what stages call -----------------------------------------------------------------------------------------------------

figure() { printf 'figure: %s\n' "$*"; }  # the last one is in the summary
skip() { printf 'skipped: %s\n' "$*" && exit $skipped; }
time_left() { echo $((limits[$stage] - SECONDS - 5)); }
workers() { echo $(($(nproc) < 8 ? $(nproc) : 8)); }

# Where a tool is; the second argument is where else it may be.
tool() { type -P "$1" || compgen -G "$2" | tail -1; }

# shown COMMAND...: prints the command and runs it.
shown() {
  printf '$ %s\n' "$*"
  "$@"
}

# How many tests of an output ran, and how many of them this device cannot run.
counted() {
  awk '/^\[=+\] [0-9]+ tests? from .* ran/ { ran += $2 } /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
       END { printf "%d tests%s", ran, skipped ? ", of which " skipped " were skipped: not for this device" : "" }' "$1"
}

# The folder with cuBLAS, for programs that load it.
find_cublas() {
  local found
  found=$(timeout 20 find /usr/local /opt /usr/lib -name 'libcublas.so.1[0-9]' 2>/dev/null | sort -V | tail -1)
  [[ -n $found ]] || found=$(timeout 20 find / \( -path /proc -o -path /sys \) -prune -o -name 'libcublas.so.1[0-9]' -print \
                               2>/dev/null | sort -V | tail -1)
  [[ -z $found ]] || dirname "$found"
}

# ---- the stages -----------------------------------------------------------------------------------------------------------

stage_facts() {
  shown "$folder/kvbound" --version || return
  shown uname -srm
  nproc | sed 's/$/ processors/'
  [[ $backend == cuda ]] || { figure "the emulation, on $(nproc) processors" && return; }
  shown nvidia-smi || return
  shown nvidia-smi -q -d CLOCK,POWER,ECC | grep -E 'Graphics|SM  |Memory  |Power Limit|ECC' | head -24
  printf 'ncu: %s\n' "$(tool ncu '/opt/nvidia/nsight-compute/*/ncu')"
  printf 'compute-sanitizer: %s\n' "$(tool compute-sanitizer '/usr/local/cuda/bin/compute-sanitizer')"
  printf 'python3: %s\n' "$(type -P python3)"
  printf 'cuBLAS: %s\n' "${cublas:-not found: K3 is not compared with it, and matrix rates are of mma.sync}"
  figure "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1); cuBLAS ${cublas:-not found}"
}

# run_tests SECONDS PROGRAM OPTION...: runs a program of tests, prints what failed, and the test in which it ended or was stopped.
# In the foreground, so that it ends with its stage.
run_tests() {
  timeout --foreground --kill-after=2 "$@" 2>&1 | awk '
      /^$|^Running |^\[-+\] / { next }
      /^\[ RUN  / { test = $0; next }
      /^\[ +OK \]/ { test = ""; next }
      test != "" { print test; test = "" }
      { print }
      END { if (test != "") print test }'
  return "${PIPESTATUS[0]}"
}
export -f run_tests

stage_impulse() {
  local name failed
  for name in "${impulse_tests[@]}"; do
    shown run_tests 20 "$folder/$name$suffix" || echo "error: $name ends with status $?"
  done 2>&1 | tee "$work/impulse"
  failed=$(grep -c '^error: .* ends with status' "$work/impulse")
  figure "$(counted "$work/impulse"), ${#impulse_tests[@]} programs, $failed of them failed"
  ((failed == 0)) && (($(grep -c '^\[  PASSED  \]' "$work/impulse") == ${#impulse_tests[@]}))
}

# The suites of a program that have a test of the filter.
suites() {
  "$1" --gtest_list_tests --gtest_filter="$2" | sed -n 's/^\([^ ]*\.\)\( .*\)\{0,1\}$/\1/p' | sed '/^Running/d'
}

# A process for each suite: after an illegal address every later test of a process fails.
stage_parity() {
  local program=$folder/kvbound_parity_$build cases='*' all
  [[ -z $tiny ]] || cases=$small_cases
  export program suite_seconds=$(((limits[parity] + 1) / 2)) OMP_NUM_THREADS=$((($(nproc) + $(workers) - 1) / $(workers)))
  mapfile -t all < <(suites "$program" "$cases")
  ((${#all[@]})) || { echo "error: $program lists no tests" && return 1; }
  # shellcheck disable=SC2016  # expanded by the shell that xargs starts
  printf '%s\n' "${all[@]}" | xargs -P "$(workers)" -I '{}' bash -c '
      if output=$(run_tests "$suite_seconds" "$program" --gtest_filter="$(one_suite "{}" "$0")"); then
        grep -E "ran\. |SKIPPED" <<<"$output"
        echo "[ SUITE PASSED ] {}"
      else
        printf "%s\n" "$output"
        echo "[ SUITE FAILED ] {}"
      fi' "$cases" | tee "$work/parity"
  local failed sessions="sessions agree"
  failed=$(grep -c '^\[ SUITE FAILED \]' "$work/parity")
  (($(grep -c '^\[ SUITE PASSED \]' "$work/parity") + failed == ${#all[@]})) ||
    { echo "error: not all suites ran to their end" && return 1; }
  sessions_agree || sessions="error: sessions of the device and of the reference differ"
  figure "$(counted "$work/parity"), ${#all[@]} suites, $failed of them failed; $sessions"
  [[ $failed == 0 && $sessions != error:* ]] || { echo "error: $failed suites failed; $sessions" && return 1; }
}

# Whole sessions, compressions and decode steps, of the device and of the reference.
sessions_agree() {
  local policies=snapkv,snapkv+critical,h2o,h2o+obcache-joint,h2o+keepkv,tova+cam,streaming-llm tokens=2048
  [[ -z $tiny ]] || { policies=snapkv+critical,h2o+keepkv && tokens=256; }
  shown "$folder/kvbound" generate --kind sink --tokens $tokens --decode 8 --layers 1 "$work/trace" --quiet &&
    shown "$folder/kvbound" replay "$work/trace" --policy "$policies" --budget 25% --backend "reference,$backend" --quiet
}

# The tests of a filter that are of one suite, as a filter.
one_suite() {
  local tests
  tests=$("$program" --gtest_list_tests --gtest_filter="$2" |
            awk -v suite="$1" '/^[^ ]/ { here = $1 == suite } here && /^  / { printf "%s%s:", suite, $1 }')
  printf '%s' "${tests%:}"
}
export -f one_suite

stage_large() {
  shown "$folder/kvbound_first_run_$build" --gtest_brief=1 --gtest_filter='LargeShapes.*' ${tiny:+--tiny} | tee "$work/large"
  local status=${PIPESTATUS[0]}
  figure "$(counted "$work/large"), $(grep -c 'median of bound over error' "$work/large") comparisons$(
    sed -n 's/^K3.*cuBLAS: not done: /; cuBLAS not done: /p' "$work/large")"
  return "$status"
}

stage_constants() {
  [[ $backend == cuda ]] || skip "the emulation has no clock"
  shown run_tests 15 "$folder/kvbound_first_run_$build" --gtest_filter='GpuConstants.*' | tee "$work/constants"
  local status=${PIPESTATUS[0]}
  figure "$(sed -n 's/^\(device_latency\|l2_bandwidth\|first_launch\|next_launch\): \(.*\) (.*/\1 \2/p' "$work/constants" |
    paste -sd ';' | sed 's/;/; /g')"
  return "$status"
}

# tool_passes TOOL: 0, 1 if it found errors, 124 if time ran out.
tool_passes() {
  printf '\n$ compute-sanitizer --tool %s\n' "$1"
  timeout "$(time_left)" "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "$folder/kvbound_parity_$build" \
    --gtest_brief=1 --gtest_filter="$small_cases"
}

stage_sanitizer() {
  [[ $backend == cuda ]] || skip "in every other stage the emulation itself looks for what compute-sanitizer would find"
  local name done_with=() left_out=() status sanitizer
  sanitizer=$(tool compute-sanitizer '/usr/local/cuda/bin/compute-sanitizer')
  [[ -n $sanitizer ]] || skip "no compute-sanitizer"
  for name in memcheck racecheck synccheck; do
    if (($(time_left) < 10)); then
      left_out+=("$name")
      continue
    fi
    tool_passes "$name"
    status=$?
    if ((status == 124)) && [[ $name != memcheck ]]; then
      left_out+=("$name")
    elif ((status != 0)); then
      echo "error: $name ended with status $status"
      return 1
    else
      done_with+=("$name")
    fi
  done
  figure "clean: ${done_with[*]}${left_out[*]:+; no time for ${left_out[*]}}"
}

bench_shape() { [[ -n $tiny ]] && echo pocket:256 || echo llama-3.1-8b; }

# All operations of a device, the main ones first; with --tiny a few.
bench_operations() {
  if [[ -n $tiny ]]; then
    printf '%s\n' attention projected-value-norms select-critical compact step
    return
  fi
  local known name
  known=$("$folder/kvbound" bench --help | awk '/^Operations of a device/ { on = 1; next } on && !NF { exit } on { print $1 }')
  for name in "${main_operations[@]}" $known; do
    grep -qx "$name" <<<"$known" && echo "$name"
  done | awk '!seen[$0]++'
}

stage_bench() {
  local operation all limit status longest=40
  [[ $backend == cuda ]] || longest=120
  mapfile -t all < <(bench_operations)
  : >"$out/bench.jsonl"
  for operation in "${all[@]}"; do
    limit=$(time_left)
    if ((limit < 8)); then
      printf 'error: no time for %s\n' "$operation"
      continue
    fi
    timeout $((limit < longest ? limit : longest)) "$folder/kvbound" bench "$operation" --backend "$backend" --shape "$(bench_shape)" \
      ${tiny:+--repeats 1} --json "$work/bench.json" --quiet >"$work/bench.txt" 2>&1
    status=$?
    if ((status == 0)); then
      sed '1,/ median  *least  *most /d' "$work/bench.txt"
      tr '\n' ' ' <"$work/bench.json" >>"$out/bench.jsonl" && echo >>"$out/bench.jsonl"
    else
      printf 'error: %s failed with status %s\n' "$operation" $status
      cat "$work/bench.txt"
    fi
  done | tee "$work/bench"
  bench_verdict "${#all[@]}"
}

# The subshell of the pipe above has its own arrays: what counts is what it printed and wrote.
bench_verdict() {
  local done_with
  done_with=$(wc -l <"$out/bench.jsonl")
  figure "$done_with of $1 operations; goals: $(grep -c 'goal .*: met' "$work/bench") met, $(
    grep -c 'goal .*: missed' "$work/bench") missed"
  (($1 > 0 && done_with == $1))
}

stage_profile() {
  [[ $backend == cuda ]] || skip "ncu reads the counters of a GPU; the emulation's are those of kvbound bench --model"
  local ncu entry operation kernels skip failed=()
  ncu=$(tool ncu '/opt/nvidia/nsight-compute/*/ncu')
  [[ -n $ncu ]] || skip "no ncu"
  : >"$out/profile.csv"
  for entry in "${profiled[@]}"; do
    read -r operation kernels <<<"$entry"
    (($(time_left) > 15)) || { failed+=("$operation: no time") && continue; }
    skip=0
    [[ $operation != projected-value-norms ]] || skip=2  # the check of wgmma's kernel, which comes first
    profile_operation "$operation" "$kernels" "$skip" || failed+=("$operation")
  done
  shown python3 "$source_folder/cuda/scripts/kernel_metrics.py" "$out/profile.csv" ${counters:+--counters "$counters"} |
    tee "$work/metrics"
  ((PIPESTATUS[0] == 0)) || return 1
  figure "$(grep -c '_kernel' "$work/metrics") kernels${failed[*]:+; without ${failed[*]}}"
  ((${#failed[@]} == 0))
}

# Profiles two launches of the kernels of an operation behind the first $3, with empty caches. If ncu does not know one of the single metrics, those of its
# sections must do.
profile_operation() {
  local sections=(LaunchStats Occupancy SpeedOfLight MemoryWorkloadAnalysis MemoryWorkloadAnalysis_Tables
                  ComputeWorkloadAnalysis) metrics more
  metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,sm__warps_active.avg.pct_of_peak_sustained_active
  metrics+=,l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum
  metrics+=,l1tex__t_requests_pipe_lsu_mem_global_op_st.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum
  metrics+=,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,l1tex__data_pipe_lsu_wavefronts_mem_shared.sum
  metrics+=,sm__inst_executed_pipe_tensor.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active
  printf '\n$ ncu: %s, %s\n' "$1" "$2"
  for more in "--metrics $metrics" ""; do
    # shellcheck disable=SC2086  # an option and its value
    timeout 60 "$ncu" --csv --page raw --clock-control none --kernel-name "regex:^$2" --launch-skip "$3" --launch-count 2 --kill yes \
      "${sections[@]/#/--section=}" $more \
      "$folder/kvbound" bench "$1" --backend cuda --shape "$(bench_shape)" --repeats 1 --quiet >"$work/ncu.txt" 2>&1
    if grep -q '^"ID"' "$work/ncu.txt"; then
      printf '"operation","%s"\n' "$1" >>"$out/profile.csv"
      sed -n '/^"/p' "$work/ncu.txt" >>"$out/profile.csv"
      return 0
    fi
    tail -5 "$work/ncu.txt"
  done
  return 1
}

stage_sweep() {
  shown "$folder/kvbound_first_run_$build" --gtest_brief=1 --gtest_filter='TileVariants.*' ${tiny:+--tiny} | tee "$work/sweep"
  local status=${PIPESTATUS[0]}
  figure "$(sed -n 's/^best: //p' "$work/sweep" | paste -sd ';' | sed 's/;/; /g; s/ of the time of what is in use//g')"
  return "$status"
}

stage_torch() {
  local names device=cuda policies=snapkv,snapkv+critical,h2o more=()
  [[ $backend == cuda ]] || { device=cpu && more=(--dtype bf16); }
  [[ -z $tiny ]] || { more+=(--rounds 1) && policies=snapkv; }
  env LD_LIBRARY_PATH="$library_path" python3 -c 'import torch' 2>"$work/torch" || skip "no PyTorch: $(tail -1 "$work/torch")"
  mapfile -t names < <(torch_names)
  # PyTorch has libraries of its own.
  shown env LD_LIBRARY_PATH="$library_path" python3 "$source_folder/sim/bench/peers/bench_torch.py" "${names[@]}" --device $device --of device \
    --shape "$(bench_shape)" --policy "$policies" "${more[@]}" --quiet --json "$out/torch.json" || return
  (($(time_left) > 5)) || { echo "error: no time is left for the device's own times" && return 1; }
  shown timeout "$(time_left)" "$folder/kvbound" bench "${names[@]}" --backend "$backend" --shape "$(bench_shape)" --repeats \
    $((${tiny:-0} ? 1 : 3)) --peer "$out/torch.json" --policy "$policies" --quiet | tee "$work/torch"
  ((PIPESTATUS[0] == 0)) || return 1
  figure "$(grep -c 'torch takes' "$work/torch") operations; attention: $(
    awk '/^attention / { on = 1 } on && /torch takes/ { sub(/.*-> /, ""); print; exit }' "$work/torch")"
}

torch_names() {
  if [[ -n $tiny ]]; then printf '%s\n' attention select-top compact step; else printf '%s\n' "${torch_operations[@]}"; fi
}

# ---- the run --------------------------------------------------------------------------------------------------------------

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
  timeout --kill-after=10 "${limits[$name]}" bash "$source_folder/cuda/first_run.sh" "${passed_on[@]}" --stage "$name" \
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

run_all() {
  local name
  all_passed=1
  : >"$out/log.txt"
  printf 'first_run.sh, --backend %s%s: %s\n' "$backend" "${tiny:+, --tiny}" "${chosen[*]}" >"$out/summary.txt"
  for name in "${stages[@]}"; do
    [[ " ${chosen[*]} " != *" $name "* ]] || run_stage "$name"
  done
  printf '\n'
  cat "$out/summary.txt"
  [[ -n $all_passed ]]
}

passed_on=("$@")
parse_arguments "$@"
check_arguments
if [[ -n $stage ]]; then
  work=$KVBOUND_FIRST_RUN_WORK cublas=$KVBOUND_FIRST_RUN_CUBLAS library_path=${LD_LIBRARY_PATH:-}
  [[ -z $cublas ]] || export LD_LIBRARY_PATH=$cublas${library_path:+:$library_path}
  SECONDS=0
  "stage_$stage"
  exit
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-first-run-XXXXXX")
trap 'rm -rf "$work"' EXIT
cublas=
[[ $backend != cuda ]] || cublas=$(find_cublas)
export KVBOUND_FIRST_RUN_WORK=$work KVBOUND_FIRST_RUN_CUBLAS=$cublas KVBOUND_REQUIRE_GPU=1 OMP_WAIT_POLICY=passive
run_all
