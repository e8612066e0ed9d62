#!/usr/bin/env bash
# The wheel of what is committed, the same bytes every time: scripts/build_wheel.sh FOLDER [aarch64 TORCH]. The second
# form cross-compiles with the compiler of Debian's g++-aarch64-linux-gnu; TORCH is an unpacked torch for that machine.
# The tag says which Linux it runs on: glibc 2.34 and GCC 11's libstdc++ (auditwheel show confirms it).
set -euo pipefail
cd "$(dirname "$0")/.."
folder="$(realpath -m "$1")" machine="${2:-x86_64}"
if [ "$machine" = aarch64 ]; then
    LBQ_TORCH="$(realpath "$3")"
    export LBQ_TORCH CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ AR=aarch64-linux-gnu-ar
    export _PYTHON_HOST_PLATFORM=linux-aarch64
fi
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" # the times of the files in the wheel
export SOURCE_DATE_EPOCH LBQ_REQUIRE_NATIVE=1 LC_ALL=C PYTHONPATH=
umask 022 # their permissions
source="$(mktemp -d)"
trap 'rm -rf "$source"' EXIT
git archive HEAD | tar -x --no-same-permissions -C "$source"
python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$folder" \
    --config-settings=--build-option=--plat-name="manylinux_2_34_$machine" "$source"
cd "$folder"
stat -c '%n: %s bytes' ./*"$machine.whl"
sha256sum ./*"$machine.whl"
