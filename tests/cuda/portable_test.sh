#!/usr/bin/env bash
# The portable programs run on a machine without any of our libraries: they are small, depend on libc alone,
# and run in a root folder that holds nothing else.
#
# usage: portable_test.sh FOLDER MOST_BYTES      FOLDER: the programs, stripped, kvbound among them
set -euo pipefail
folder=$(realpath "$1")
most_bytes=$2
newest_libc=2.35 # Ubuntu 22.04's: images with a GPU's libraries are older than what they are built on
bare=$(mktemp -d "${TMPDIR:-/tmp}/kvbound-bare-XXXXXX")
trap 'rm -rf "$bare"' EXIT

fail() {
  printf '%s\n' "$1" >&2
  exit 1
}

# in_bare COMMAND...: runs the command in a root folder that holds only these programs,
# libc and its dynamic loader.
in_bare() {
  local chroot
  chroot=$(PATH=$PATH:/usr/sbin type -P chroot)
  if ((EUID == 0)); then
    env -i "$chroot" "$bare" "$@"
  else
    env -i "$(type -P unshare)" --map-root-user "$chroot" "$bare" "$@"
  fi
}

bytes=0
for program in "$folder"/*; do
  name=${program##*/}
  bytes=$((bytes + $(stat -c %s "$program")))
  needed=$(objdump -p "$program" | awk '$1 == "NEEDED" { print $2 }')
  grep -q . <<<"$needed" || fail "$name is no dynamically linked program"
  # The last three are part of libc.
  strangers=$(grep -vE '^(ld-linux-[a-z0-9-]+|libc|libm|libdl|librt|libpthread)\.so\.[0-9]+$' <<<"$needed" || true)
  [[ -z $strangers ]] || fail "$name needs $strangers"
  version=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -V | tail -1)
  [[ $(printf '%s\n' "$version" "$newest_libc" | sort -V | tail -1) == "$newest_libc" ]] ||
    fail "$name needs libc $version, newer than $newest_libc"
  printf '%-26s %9d bytes, libc %s\n' "$name" "$(stat -c %s "$program")" "$version"
  cp "$program" "$bare/"
  ldd "$program" | grep -oE '/[^ ]+' | while read -r library; do cp -Lnr --parents "$library" "$bare"; done
done
printf '%-26s %9d bytes\n' together "$bytes"
((bytes < most_bytes)) || fail "that is more than $most_bytes bytes"

in_bare /kvbound --version
in_bare /kvbound generate --kind sink --tokens 256 --decode 4 --layers 1 /trace --quiet
in_bare /kvbound replay /trace --policy snapkv,snapkv+critical --budget 25% --quiet
in_bare /kvbound prove ckv-3.3 --cases 50 --quiet >/dev/null
if [[ -e $folder/kvbound_peers_native ]]; then  # there is no driver
  said=$(in_bare /kvbound_peers_native bench cub --judge /kvbound --calls / --json /peer.json 2>&1) && fail "kvbound_peers_native finds a GPU"
  [[ $said == 'kvbound: no CUDA device: '* && $said != *$'\n'* ]] || fail "kvbound_peers_native says: $said"
fi
for program in "$folder"/*; do
  name=${program##*/}
  [[ $name == kvbound || $name == kvbound_peers_native ]] || in_bare "/$name" --gtest_list_tests | grep '^  ' >/dev/null || fail "$name lists no tests"
done
