#!/usr/bin/env bash
# The programs for a GPU's machine link, start and are small enough to be copied there, as far as this build can show: the preset
# gpu-portable compresses their machine code, which is compressed here for its size alone, and adds static libraries.
#
# usage: native_programs_test.sh MOST_BYTES PROGRAM...      MOST_BYTES: of all programs together, stripped and compressed
set -euo pipefail
most_bytes=$1
shift
folder=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-native-XXXXXX")
trap 'rm -rf "$folder"' EXIT

bytes=0
for program; do
  stripped=$folder/${program##*/}
  strip -o "$stripped" "$program"
  size=$(gzip -1 <"$stripped" | wc -c)
  bytes=$((bytes + size))
  printf '%-28s %9d bytes\n' "${program##*/}" "$size"
  if [[ ${program##*/} == kvbound ]]; then
    "$stripped" --version
  else
    "$stripped" --gtest_list_tests | grep '^  ' >/dev/null || { echo "${program##*/} lists no tests" >&2 && exit 1; }
  fi
done
printf '%-28s %9d bytes\n' together "$bytes"
((bytes < most_bytes)) || { echo "that is more than $most_bytes bytes" >&2 && exit 1; }
