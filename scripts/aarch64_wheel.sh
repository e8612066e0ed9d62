#!/usr/bin/env bash
# The wheel for aarch64, cross-compiled, and used under qemu: scripts/aarch64_wheel.sh SOURCE FOLDER. Debian's Python
# 3.11 for arm64, torch, numpy and the wheel lie in FOLDER/root; nothing is installed on this machine. Import, one
# forward and backward pass, and the integers of the engine and of lbq-run, which must be those of this machine.
#
# PyPI's torch for aarch64 is linked with CUDA, gigabytes of libraries that no call here reaches: in their place are
# libraries whose functions return an error. torch asks Linux for the kind of processor, so there is a /proc/cpuinfo.
set -euo pipefail
cd "$(dirname "$0")/.."
source="$(realpath "$1")" folder="$(realpath -m "$2")"
root="$folder/root" site="$folder/root/site" lists="$folder/apt"
mkdir -p "$root/proc" "$root/sys/devices/system/cpu" "$lists"

need=()
command -v aarch64-linux-gnu-g++ >/dev/null || need+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64 >/dev/null || need+=(qemu-user)
[ ${#need[@]} -eq 0 ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null; }

echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main' >"$lists/list"
apt_arm64() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o Dir::Cache="$lists" \
        -o Dir::Etc::SourceList="$lists/list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State="$lists" \
        -o Dir::State::Status=/dev/null "$@"
}
apt_arm64 update
apt_arm64 install --yes --download-only --no-install-recommends python3.11 libstdc++6 >/dev/null
for package in "$lists"/archives/*.deb; do
    dpkg -x "$package" "$root"
done
printf 'processor\t: 0\nFeatures\t: fp asimd crc32\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd08\n\n' \
    >"$root/proc/cpuinfo"
echo 0 | tee "$root/sys/devices/system/cpu/possible" >"$root/sys/devices/system/cpu/present"

for_arm64() {
    python -m pip install --quiet --target "$site" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_34_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 "$@"
}
for_arm64 --no-deps torch==2.13.0
for_arm64 numpy safetensors tyro rich filelock typing-extensions sympy networkx jinja2 fsspec
scripts/build_wheel.sh "$source" "$folder" aarch64 "$site/torch"
for_arm64 --no-deps "$folder"/lbq-*aarch64.whl
auditwheel show "$folder"/lbq-*aarch64.whl | tr '\n' ' ' | grep -o 'constrains the platform tag to "manylinux_2_[0-9]*_aarch64"'

symbols() { aarch64-linux-gnu-nm --dynamic --format=posix "$@" 2>/dev/null | sed 's/[@ ].*//' | sort -u; }
places=("$site/torch/lib" "$root/lib/aarch64-linux-gnu" "$root/usr/lib/aarch64-linux-gnu")
mapfile -t libraries < <(find "${places[@]}" -maxdepth 1 -name '*.so*' -type f)
{
    comm -23 <(symbols --undefined-only "$site"/torch/lib/*.so) <(symbols --defined-only "${libraries[@]}") |
        grep -v '^_*Py' | sed 's/.*/.globl &\n.type &, %function\n&:/'
    echo 'mov w0, #100' # cudaErrorNoDevice
    echo ret
} >"$folder/no_cuda.s"
mkdir -p "$root/cuda"
echo 'NVSHMEM { global: *; };' >"$folder/nvshmem.map" # its symbols have this version, those of others the library's name
for name in $(aarch64-linux-gnu-objdump -p "$site"/torch/lib/*.so | awk '/NEEDED/ { print $2 }' | sort -u); do
    versions=--default-symver
    [[ "$name" != libnvshmem* ]] || versions="--version-script=$folder/nvshmem.map"
    find "${places[@]}" -maxdepth 1 -name "$name" | grep -q . ||
        aarch64-linux-gnu-gcc -shared -nostdlib -Wl,-soname,"$name,$versions" -o "$root/cuda/$name" "$folder/no_cuda.s"
done

cd "$folder"
python -c '
import numpy, torch, lbq
torch.manual_seed(0)
model = lbq.load_pretrained("pocket-cifar10")
pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
net = lbq.quantize(model, torch.randn(8, 3, 32, 32))
lbq.save_network(net, "net.lbq")
numpy.save("pixels.npy", pixels.numpy())
numpy.save("logits.npy", lbq.run_network(net, pixels).numpy())
pixels.numpy().tofile("pixels.u8")
'
arm64() {
    qemu-aarch64 -cpu cortex-a72 -L "$root" -E LD_LIBRARY_PATH="$root/cuda:$site/torch/lib" -E PYTHONPATH="$site" \
        -E PYTHONHOME="$root/usr" -E OMP_NUM_THREADS=1 "$@"
}
arm64 "$root/usr/bin/python3.11" -c '
import platform, numpy, torch, lbq
from lbq.kernels import native_scan as native
neuron = lbq.BurstLIF()
neuron(torch.randn(2, 3, 4).requires_grad_()).sum().backward()
pixels = torch.from_numpy(numpy.load("pixels.npy"))
print("float32:", lbq.load_pretrained("pocket-cifar10")(pixels / 64.0 - 2).shape)
logits = lbq.run_network(lbq.load_network("net.lbq"), pixels, backend="native")
assert numpy.array_equal(logits.numpy(), numpy.load("logits.npy")), logits
print(platform.machine(), "native kernels:", native.isa(), "| step gradient:", neuron.step.raw_step.grad.item())
assert native.isa() == "neon"
'
python -m zipfile -e lbq-*aarch64.whl unpacked
chmod +x unpacked/*.data/scripts/lbq-run
arm64 unpacked/*.data/scripts/lbq-run net.lbq - <pixels.u8 >rows.csv
python -c '
import numpy
rows = [[int(word) for word in row.split(",")[2:]] for row in open("rows.csv").read().split()[1:]]
assert numpy.array_equal(rows, numpy.load("logits.npy")), rows
print("lbq-run: the same integers")
'
