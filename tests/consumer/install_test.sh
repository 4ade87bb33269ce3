#!/usr/bin/env bash
# The installed package works from anywhere: a program that finds it builds against it, runs, and needs nothing of
# the source or build tree.
#
# usage: install_test.sh BUILD_DIR CXX_COMPILER      BUILD_DIR: all of it is built; CXX_COMPILER: that built it
set -euo pipefail
build=$(realpath "$1")
compiler=$2
source=$(dirname "$(realpath "$0")")
folder=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-install-XXXXXX")
trap 'rm -rf "$folder"' EXIT

# cached NAME: the value of a variable of the build, whose flags (sanitizers, say) the consumer must share.
cached() {
  sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"
}

cmake --install "$build" --prefix "$folder/prefix" >"$folder/log"
mkdir "$folder/consumer"
cp "$source/CMakeLists.txt" "$source/main.cpp" "$folder/consumer"
cmake -S "$folder/consumer" -B "$folder/build" -G "$(cached CMAKE_GENERATOR)" -DCMAKE_PREFIX_PATH="$folder/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" \
  -DCMAKE_CXX_FLAGS="$(cached CMAKE_CXX_FLAGS)" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
cmake --build "$folder/build"

echo "what each KV head keeps:"
(cd "$folder" && build/consumer | tee kept)
# Ten positions per KV head, ascending, the last four of 64 among them.
if ! [[ $(wc -w <"$folder/kept") == 20 && $(grep -cx '\([0-9]* \)\{6\}60 61 62 63 ' "$folder/kept") == 2 ]]; then
  echo "expected 2 lines of 10 positions that end in 60 61 62 63" >&2
  exit 1
fi

"$folder/prefix/bin/kvbound" --version | tee "$folder/version"
grep -q '^kvbound [0-9.]* (.*)$' "$folder/version"

# Nothing that was installed may lead back.
for tree in "$build" "$(dirname "$(dirname "$source")")"; do
  if grep -rlF "$tree/" "$folder/prefix" --include='*.cmake' --include='*.hpp' ||
    grep -F "$tree/" "$folder/build/compile_commands.json"; then
    echo "the installed package refers to $tree" >&2
    exit 1
  fi
done
while IFS=: read -r header line; do
  included=${line#*\"}
  if [[ ! -e $(dirname "$header")/${included%\"*} ]]; then
    echo "$header includes $included, which was not installed" >&2
    exit 1
  fi
done < <(grep -r '^#include "' "$folder/prefix/include")
if find "$folder/prefix/include" -type f ! -name '*.hpp' | grep .; then
  echo "these are no headers" >&2
  exit 1
fi
