# shellcheck shell=bash disable=SC2154  # the variables of measure.sh
# The stages of `cuda/measure.sh A` and `B`, each of which runs in a process of its own: a function
# stage_NAME, whose last line "figure: ..." is shown in the summary.

# A small case of every operation, and of all their kernels' head_dims.
small_cases='*UnderEverySchedule*:AttentionParity/*.DoesWithoutLogits:ObcacheParity/*.WindowMatchesReferenceAcrossGroups'
small_cases+=':ObcacheParity/*.StepMatchesReferenceAcrossSizesAndRaggedHeads:DominantEntriesParity.*'
small_cases+=':CausalAttentionParity/*.DoesWithoutLogits'
small_cases+=':ScoreEmaParity/*.MatchesReferenceAcrossSizes:ObserveScoresParity.Follows*:ReplaceScoresParity.*'
small_cases+=':ClusterWeightsParity.*:AppendParity/*.Writes*:AppendNumbersParity.*:CompactNumbersParity.Moves*'
small_cases+=':StepChangesParity/*.KeepsWhat*:CompactPositionsParity.*:UpdateScoresParity.Takes*:PackParity.CopiesEveryByte*'
small_cases+=':SnapKvParity/*.MatchesReferenceAcrossGroups:PoolParity.Shows*:ValueSpaceParity/*.MatchesReferenceAcrossGroups'
small_cases+=':GroupReductionParity.MatchesReference/mean:Wgmma*:*SessionHeadDims.*:-*/F16.*:EvictCriticalParity.AClusterWithAdaptive*'

# In the order of their importance: time may run out.
main_operations=(attention attention-compressed projected-value-norms window-attention nearest-keys compact select-critical
                 window-log-sum-exp window-change-scores gram-matrices projected-value-norms-l2 select-top merged-keys
                 weighted-means prompt-averages key-norms nearest-key append-evict append-evict-critical)
step_policies=h2o,h2o+critical,h2o+keepkv,streaming-llm,tova,h2o+obcache-joint
# An operation, and how the names of those of its kernels begin of which two launches are profiled.
profiled=("attention attention_" "attention-compressed attention_" "nearest-keys nearest_keys_" "projected-value-norms-l2 lengths_"
          "projected-value-norms norms_" "window-attention window_attention_" "window-log-sum-exp window_log_sum_exp_"
          "window-change-scores window_change_scores_" "select-critical select_" "compact compact_" "merged-keys merged_keys_"
          "weighted-means weighted_")
peer_operations=(attention attention-compressed window-attention projected-value-norms select-top select-critical compact
                 nearest-keys compress step)

figure() { printf 'figure: %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*" && exit "$skipped"; }
# The seconds that a tool may take and be killed before its stage is: 1 at least, for 0 would be no limit.
time_left() { echo $((limits[$stage] - SECONDS > 4 ? limits[$stage] - SECONDS - 3 : 1)); }
workers() { echo $(($(nproc) < 8 ? $(nproc) : 8)); }
bench_shape() { [[ -n $tiny ]] && echo pocket:256 || echo llama-3.1-8b; }

# Where a tool is; the second argument is where else it may be.
tool() { type -P "$1" || compgen -G "$2" | tail -1; }

# shown COMMAND...: prints the command and runs it.
shown() {
  printf '$ %s\n' "$*"
  "$@"
}

# with_cublas COMMAND...: for programs that look for cuBLAS when they run.
with_cublas() { env ${cublas:+"LD_LIBRARY_PATH=$cublas${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"} "$@"; }

# run_tests SECONDS PROGRAM OPTION...: runs a program of tests, prints what failed, and the test in which it
# ended or was stopped. In the foreground, so that it ends with its stage.
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

# How many tests of an output ran, and how many of them this device cannot run.
counted() {
  awk '/^\[=+\] [0-9]+ tests? from .* ran/ { ran += $2 } /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
       END { printf "%d tests%s", ran, skipped ? ", of which " skipped " were skipped: not for this device" : "" }' "$1"
}

# ---- right? ------------------------------------------------------------------------------------------------

stage_facts() {
  shown "$folder/kvbound" --version || return
  shown uname -srm
  nproc | sed 's/$/ processors/'
  [[ $backend == cuda ]] || { figure "the emulation, on $(nproc) processors" && return; }
  shown nvidia-smi || return
  shown nvidia-smi -q -d CLOCK,POWER,ECC | grep -E 'Graphics|SM  |Memory  |Power Limit|ECC' | head -24
  printf 'ncu: %s\ncompute-sanitizer: %s\npython3: %s\ncuBLAS: %s\n' "$(tool ncu '/opt/nvidia/nsight-compute/*/ncu')" \
    "$(tool compute-sanitizer '/usr/local/cuda/bin/compute-sanitizer')" "$(type -P python3)" "${cublas:-not found: matrix rates are of mma.sync}"
  shown run_tests 5 "$folder/kvbound_measure_$kernels" --gtest_filter=GpuConstants.ClustersThatFit | tee "$work/facts"
  local status=${PIPESTATUS[0]}
  figure "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1); cuBLAS ${cublas:-not found}; $(
    sed -n 's/^\(clusters of [48]\): \([0-9]*\) .*whole.*/\1: \2/p' "$work/facts" | paste -sd ,)"
  return "$status"
}

# A process for each suite: after an illegal address every later test of a process fails.
stage_impulse() {
  local program=$folder/primitives$ending suite all failed
  mapfile -t all < <("$program" --gtest_list_tests | sed -n '/^Running/d;s/^\([^ ]*\.\).*/\1/p')
  ((${#all[@]})) || { echo "error: $program lists no tests" && return 1; }
  for suite in "${all[@]}"; do
    shown run_tests $((limits[$stage] / 2)) "$program" --gtest_filter="$suite*" || echo "error: $suite ends with status $?"
  done 2>&1 | tee "$work/impulse"
  failed=$(grep -c '^error: .* ends with status' "$work/impulse")
  figure "$(counted "$work/impulse"), ${#all[@]} suites, $failed of them failed"
  ((failed == 0)) && (($(grep -c '^\[  PASSED  \]' "$work/impulse") == ${#all[@]}))
}

# tests_of FILTER changed|rest: the parity tests of a filter, of the suites that changed or of the others: a
# line for each suite, as a filter. Without a list all have changed. AttentionParity is the suite of
# All/AttentionParity/BF16, too. A program that does not end well, or has no test of the filter, is an error.
tests_of() {
  "$folder/kvbound_parity_$kernels" --gtest_list_tests --gtest_filter="$1" | awk -v wanted="$2" -v list="$suites" '
    BEGIN { while (list != "" && (getline line < list) > 0) listed[line] }
    /^Running / { next }
    /^[^ ]/ {
      changed = list == ""
      for (i = split($1, parts, /[.\/]/); i > 0; --i) changed = changed || parts[i] in listed
      suite = $1; begun = 0
    }
    /^ / { known = 1 }
    /^ / && changed == (wanted == "changed") { printf "%s%s%s", begun++ ? ":" : started++ ? "\n" : "", suite, $1 }
    END { if (started) print ""; exit !known }'
}

parity_of() {
  local cases='*' all failed
  [[ -z $tiny ]] || cases=$small_cases
  mapfile -t all < <(tests_of "$cases" "$1")
  wait $! || { echo "error: kvbound_parity_$kernels lists no tests" && return 1; }
  if ((${#all[@]} == 0)); then
    [[ $1 == rest || -n $tiny || ! -s $suites ]] || { echo "error: no suite of $suites is known" && return 1; }
    skip "no suites: see suites.txt"
  fi
  export -f run_tests
  export program=$folder/kvbound_parity_$kernels suite_seconds=$(((limits[$stage] + 1) / 2))
  export OMP_NUM_THREADS=$((($(nproc) + $(workers) - 1) / $(workers)))
  # shellcheck disable=SC2016  # expanded by the shell that xargs starts
  printf '%s\n' "${all[@]}" | xargs -d '\n' -P "$(workers)" -n 1 bash -c '
      if output=$(run_tests "$suite_seconds" "$program" --gtest_filter="$0"); then
        grep -E "ran\. |SKIPPED" <<<"$output"
        echo "[ SUITE PASSED ] ${0%%.*}."
      else
        printf "%s\n[ SUITE FAILED ] %s.\n" "$output" "${0%%.*}"
      fi' | tee "$work/parity"
  failed=$(grep -c '^\[ SUITE FAILED \]' "$work/parity")
  (($(grep -c '^\[ SUITE PASSED \]' "$work/parity") + failed == ${#all[@]})) ||
    { echo "error: not all suites ran to their end" && return 1; }
  figure "$(counted "$work/parity"), ${#all[@]} suites, $failed of them failed"
  [[ $failed == 0 ]] || { echo "error: $failed suites failed" && return 1; }
}

stage_parity() { parity_of changed; }
stage_rest() { parity_of rest; }

# Whole sessions, compressions and decode steps, of the device and of the reference.
stage_sessions() {
  local policies=snapkv,snapkv+critical,h2o,h2o+obcache-joint,h2o+keepkv,tova+cam,streaming-llm tokens=2048
  [[ -z $tiny ]] || { policies=snapkv+critical,h2o+keepkv && tokens=256; }
  shown "$folder/kvbound" generate --kind sink --tokens $tokens --decode 8 --layers 1 "$work/trace" --quiet &&
    shown "$folder/kvbound" replay "$work/trace" --policy "$policies" --budget 25% --backend "reference,$backend" --quiet &&
    figure "$policies agree" || { echo "error: sessions of the device and of the reference differ" && return 1; }
}

# A process for each suite, as of the primitives; "All/" precedes those that have parameters.
stage_repeats() {
  local suite
  for suite in '*ClusterRepeats' '*SessionRepeats' Differences; do
    shown run_tests "$(time_left)" "$folder/kvbound_measure_$kernels" --gtest_filter="$suite.*" ${tiny:+--tiny} ||
      echo "error: $suite ends with status $?"
  done 2>&1 | tee "$work/repeats"
  figure "$(counted "$work/repeats")"
  ! grep -q '^error: .* ends with status' "$work/repeats"
}

stage_large() {
  shown with_cublas "$folder/kvbound_measure_$kernels" --gtest_brief=1 --gtest_filter='LargeShapes.*' ${tiny:+--tiny} |
    tee "$work/large"
  local status=${PIPESTATUS[0]}
  figure "$(counted "$work/large"), $(grep -c 'median of bound over error' "$work/large") comparisons$(
    sed -n 's/^K3.*cuBLAS: not done: /; cuBLAS not done: /p' "$work/large")"
  return "$status"
}

stage_memcheck() {
  [[ $backend == cuda ]] || skip "in every other stage the emulation itself looks for what compute-sanitizer would find"
  local sanitizer cases
  sanitizer=$(tool compute-sanitizer '/usr/local/cuda/bin/compute-sanitizer')
  [[ -n $sanitizer ]] || skip "no compute-sanitizer"
  cases=$(tests_of "$small_cases" changed | paste -sd :) ||
    { echo "error: kvbound_parity_$kernels lists no tests" && return 1; }
  [[ -n $cases ]] || skip "no suites: see suites.txt"
  # In a group of its own, so that what the tool started ends with it.
  timeout --kill-after=2 "$(time_left)" "$sanitizer" --tool memcheck --error-exitcode 9 --print-limit 20 \
    "$folder/kvbound_parity_$kernels" --gtest_brief=1 --gtest_filter="$cases" | tee "$work/memcheck"
  local status=${PIPESTATUS[0]}
  ((status == 0)) || { echo "error: memcheck ended with status $status" && return 1; }
  figure "clean: $(counted "$work/memcheck")"
}

# ---- how fast? ---------------------------------------------------------------------------------------------

# bench SECONDS OPERATION...: kvbound bench; its JSON becomes a line of bench.jsonl.
bench() {
  local status
  with_cublas timeout --foreground --kill-after=2 "$1" "$folder/kvbound" bench "${@:2}" --backend "$backend" \
    --shape "$(bench_shape)" --repeats $((${tiny:-0} ? 1 : 5)) --json "$work/bench.json" --quiet
  status=$?
  ((status == 0)) || { printf 'error: bench %s ends with status %s\n' "$2" $status && return 1; }
  tr '\n' ' ' <"$work/bench.json" >>"$out/bench.jsonl" && echo >>"$out/bench.jsonl"
}

# h2o's steps of 32 layers together, and attention over their caches: microseconds a layer.
steps_together() {
  with_cublas timeout --foreground --kill-after=2 "$(time_left)" "$folder/kvbound" bench step --policy h2o --backend "$backend" \
    --layers $((${tiny:-0} ? 2 : 32)) --shape "$(bench_shape)" --repeats $((${tiny:-0} ? 1 : 5)) --quiet | tee "$work/together"
}

stage_anatomy() {
  local policies=$step_policies policy ncu status=0
  [[ -z $tiny ]] || policies=h2o
  bench "$(time_left)" step --policy "$policies" | tee "$work/steps" || return
  ncu=$(tool ncu '/opt/nvidia/nsight-compute/*/ncu')
  if [[ $backend == cuda && -n $ncu ]]; then
    : >"$out/steps.csv"
    for policy in ${policies//,/ }; do
      profile "$out/steps.csv" "step, $policy" --metrics gpu__time_duration.sum --launch-count 90 -- step --policy "$policy" ||
        status=1
    done
    shown python3 "$root/cuda/scripts/kernel_metrics.py" "$out/steps.csv" --steps || status=1
  fi
  steps_together || status=1
  figure "$(grep -c '^step, ' "$work/steps") policies; h2o: $(awk '/^step, h2o / { on = 1 } on && /->/ { print $2, "times attention"; exit }' \
    "$work/steps"); together, $(
    grep -oE '[0-9.]+ [mun]?s a layer' "$work/together" | sed -n 2,3p | paste -sd , | sed 's/,/, attention /')"
  return $status
}

# All operations in one process, which makes the matrices of the rooflines once. If it fails, or hangs, each
# operation has a process of its own, while there is time.
stage_bench() {
  local operation all=("${main_operations[@]}" compress)
  [[ -z $tiny ]] || all=(attention projected-value-norms select-critical compact)
  {
    bench $(($(time_left) / 2)) "${all[@]}" || for operation in "${all[@]}"; do
      (($(time_left) > limits[$stage] / 10)) || { printf 'error: no time for %s\n' "$operation" && continue; }
      bench $((limits[$stage] / 10)) "$operation"
    done
  } 2>&1 | tee "$work/bench"
  local done_with
  done_with=$(grep -o '"operation": \["[^]]*\]' "$out/bench.jsonl" | grep -o '"[a-z0-9-]*"' | grep -v '"operation"\|"step"' | sort -u | wc -l)
  figure "$done_with of ${#all[@]} operations; goals: $(grep -c 'goal .*: met' "$work/bench") met, $(
    grep -c 'goal .*: missed' "$work/bench") missed"
  ((done_with == ${#all[@]}))
}

# The folder with FlashInfer's and CUB's headers, if step_headers has put it into $peers.
peer_headers() { compgen -G "$peers/lib/python3*/site-packages/flashinfer/data"; }

# library NAME: its kernels, judged and timed, and then kvbound bench beside them.
library() {
  local file=$work/$1.json operations=() rounds=$((${tiny:-0} ? 1 : 5)) shape=llama-3.1-8b${tiny:+:256}
  [[ $backend == cuda ]] || { operations=(attention) && shape=$(bench_shape); }
  mkdir -p "$work/calls"
  shown timeout --foreground --kill-after=2 "$(time_left)" "$folder/kvbound_peers_$kernels" bench "$1" "${operations[@]}" --shape "$shape" \
    --repeats $rounds --judge "$folder/kvbound" --calls "$work/calls" --json "$file" || printf 'error: the kernels of %s: status %s\n' "$1" $?
  [[ -e $file ]] || return
  { tr '\n' ' ' <"$file" && echo; } >>"$out/libraries.jsonl"
  mapfile -t operations < <(sed -n 's/^ *"operation": "\(.*\)",$/\1/p' "$file")
  shown timeout --foreground --kill-after=2 "$(time_left)" "$folder/kvbound" bench "${operations[@]}" --backend "$backend" \
    --shape "$shape" --repeats $rounds --peer "$file" --quiet || printf 'error: bench beside %s: status %s\n' "$1" $?
}

stage_libraries() {
  local names=(flashinfer flashinfer-tensor-cores cub) name
  [[ $backend == cuda ]] || names=(processor)
  [[ -x $folder/kvbound_peers_$kernels ]] || skip "no program kvbound_peers_$kernels: prepare's steps headers and build make it"
  for name in "${names[@]}"; do library "$name"; done 2>&1 | tee "$work/libraries"
  figure "$(grep -c 'takes .* times as long' "$work/libraries") operations judged right and timed; attention: $(
    sed -n '/^attention /,/->.*times as long/s/.*-> \(.* takes .*\)/\1/p' "$work/libraries" | paste -sd ';' | sed 's/;/; /g')"
  ! grep -q '^error: ' "$work/libraries"
}

stage_peers() {
  local names=("${peer_operations[@]}") device=cuda policies=snapkv,snapkv+critical,h2o more=()
  [[ $backend == cuda ]] || { device=cpu && more=(--dtype bf16); }
  [[ -z $tiny ]] || { names=(attention select-top compact step) && more+=(--rounds 1) && policies=snapkv; }
  python3 -c 'import torch' 2>"$work/torch" || skip "no PyTorch: $(tail -1 "$work/torch")"
  shown python3 "$root/sim/bench/peers/bench_torch.py" "${names[@]}" --device $device --of device --shape "$(bench_shape)" \
    --policy "$policies" "${more[@]}" --quiet --json "$out/torch.json" || return
  (($(time_left) > 5)) || { echo "error: no time is left for the device's own times" && return 1; }
  shown with_cublas timeout --foreground --kill-after=2 "$(time_left)" "$folder/kvbound" bench "${names[@]}" \
    --backend "$backend" --shape "$(bench_shape)" --repeats $((${tiny:-0} ? 1 : 3)) --peer "$out/torch.json" \
    --policy "$policies" --quiet | tee "$work/peers" || return
  figure "$(grep -c 'torch takes' "$work/peers") operations; attention: $(
    awk '/^attention / { on = 1 } on && /torch takes/ { sub(/.*-> /, ""); print; exit }' "$work/peers")"
}

# profile FILE NAME NCU-OPTION... -- ARGUMENT...: what ncu says of a run of `kvbound bench ARGUMENT...`,
# behind a line with its name. Without cuBLAS, whose matrices would take a second to make, and in a group of
# its own, so that the program ends with ncu.
profile() {
  local file=$1 name=$2 seconds options=()
  seconds=$(($(time_left) < 30 ? $(time_left) : 30))
  ((seconds > 2)) || { printf 'error: no time for ncu: %s\n' "$name" && return 1; }
  shift 2
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  printf '\n$ ncu: %s\n' "$name"
  timeout --kill-after=2 "$seconds" "$ncu" --csv --page raw --clock-control none --kill yes "${options[@]}" \
    "$folder/kvbound" bench "${@:2}" --backend cuda --shape "$(bench_shape)" --repeats 1 --quiet >"$work/ncu.txt" 2>&1
  grep -q '^"ID"' "$work/ncu.txt" || { tail -5 "$work/ncu.txt" && return 1; }
  { printf '"operation","%s"\n' "$name" && sed -n '/^"/p' "$work/ncu.txt"; } >>"$file"
}

stage_profile() {
  [[ $backend == cuda ]] || skip "ncu reads the counters of a GPU; the emulation's are those of kvbound bench --model"
  local ncu entry operation names before failed=() metrics more
  local sections=(LaunchStats Occupancy SpeedOfLight WarpStateStats)
  metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,sm__warps_active.avg.pct_of_peak_sustained_active
  metrics+=,l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum
  metrics+=,l1tex__t_requests_pipe_lsu_mem_global_op_st.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum
  metrics+=,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum,l1tex__data_pipe_lsu_wavefronts_mem_shared.sum
  metrics+=,sm__inst_executed_pipe_tensor.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active
  ncu=$(tool ncu '/opt/nvidia/nsight-compute/*/ncu')
  [[ -n $ncu ]] || skip "no ncu"
  : >"$out/profile.csv"
  for entry in "${profiled[@]}"; do
    read -r operation names <<<"$entry"
    before=0
    [[ $operation != projected-value-norms ]] || before=2  # the check of wgmma's kernel, which comes first
    # If ncu does not know one of the single metrics, those of its sections must do.
    for more in "--metrics=$metrics" ""; do
      profile "$out/profile.csv" "$operation" "${sections[@]/#/--section=}" ${more:+"$more"} --kernel-name "regex:^$names" \
        --launch-skip $before --launch-count 2 -- "$operation" && continue 2
    done
    failed+=("$operation")
  done
  shown python3 "$root/cuda/scripts/kernel_metrics.py" "$out/profile.csv" | tee "$work/metrics"
  ((PIPESTATUS[0] == 0)) || return 1
  figure "$(grep -c '_kernel' "$work/metrics") kernels${failed[*]:+; without ${failed[*]}}"
  ((${#failed[@]} == 0))
}

stage_variants() {
  shown "$folder/kvbound_measure_$kernels" --gtest_brief=1 --gtest_filter="$variants" ${tiny:+--tiny} | tee "$work/variants"
  local status=${PIPESTATUS[0]}
  figure "$(sed -n 's/^best: //p' "$work/variants" | paste -sd ';' | sed 's/;/; /g; s/ of the time of what is in use//g')"
  return "$status"
}

stage_constants() {
  [[ $backend == cuda ]] || skip "the emulation has no clock"
  shown run_tests 12 "$folder/kvbound_measure_$kernels" --gtest_filter='GpuConstants.*' | tee "$work/constants"
  local status=${PIPESTATUS[0]}
  figure "$(sed -n 's/^\(device_latency\|l2_bandwidth\|first_launch\|next_launch\): \(.*\) (.*/\1 \2/p' "$work/constants" |
    paste -sd ';' | sed 's/;/; /g')"
  return "$status"
}
