#!/usr/bin/env bash
# A wheel, the same bytes every time: scripts/build_wheel.sh SOURCE FOLDER [aarch64 TORCH]. SOURCE is `git archive HEAD`
# or the sdist, unpacked. With aarch64 the compiler of Debian's g++-aarch64-linux-gnu builds it; TORCH is an unpacked
# torch for that machine. The tag says which Linux it needs: glibc 2.34 and GCC 11's libstdc++ (RHEL 9, Ubuntu 22.04,
# Debian 12); `auditwheel show` reads the same from the symbols.
set -euo pipefail
cd "$(dirname "$0")/.."
source="$(realpath "$1")" folder="$(realpath -m "$2")" machine="${3:-x86_64}"
if [ "$machine" = aarch64 ]; then
    LBQ_TORCH="$(realpath "$4")"
    export LBQ_TORCH CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ AR=aarch64-linux-gnu-ar
    export _PYTHON_HOST_PLATFORM=linux-aarch64
fi
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" # the times of the files in the wheel
export SOURCE_DATE_EPOCH LBQ_REQUIRE_NATIVE=1 LC_ALL=C PYTHONPATH=
umask 022
chmod -R u=rwX,go=rX "$source" # their permissions
python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$folder" \
    --config-settings=--build-option=--plat-name="manylinux_2_34_$machine" "$source"
cd "$folder"
stat -c '%n: %s bytes' ./*"$machine.whl"
sha256sum ./*"$machine.whl"
