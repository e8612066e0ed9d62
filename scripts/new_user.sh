#!/usr/bin/env bash
# How long a new user waits for a first answer: scripts/new_user.sh WHEEL RECORD.json. In an empty environment: download
# everything, install it without a network, then convert the network that comes with lbq to integers, write it as ONNX and
# ask ONNX Runtime; the first start also compiles Python's files.
set -euo pipefail
wheel="$(realpath "$1")" record="$(realpath -m "$2")"
constraints="$(realpath "$(dirname "$0")/../constraints.txt")"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HOME="$folder" XDG_CACHE_HOME="$folder" PYTHONPATH= ORT_DISABLE_TELEMETRY=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PIP_CONSTRAINT
now() { date +%s.%N; }

cat >answer.py <<'PROGRAM'
import lbq
import numpy as np
import onnxruntime
import torch

model = lbq.load_pretrained("pocket-cifar10")
net = lbq.quantize(model, torch.randn(8, 3, 32, 32))
lbq.export(net, "net.onnx")
session = onnxruntime.InferenceSession("net.onnx")
image = np.zeros((1, 3, 32, 32), np.uint8)
[logits] = session.run(None, {session.get_inputs()[0].name: image})
assert (logits == lbq.run_network(net, torch.from_numpy(image)).numpy()).all()
print("class", logits.argmax())
PROGRAM

times=("$(now)")
python3 -m venv venv
times+=("$(now)")
venv/bin/pip download --quiet --no-cache-dir -c "$constraints" -d wheels torch==2.13.0 "$wheel[onnx]"
times+=("$(now)")
venv/bin/pip install --quiet --no-index --find-links wheels -c "$constraints" "$wheel[onnx]"
times+=("$(now)")
venv/bin/python answer.py
times+=("$(now)")
venv/bin/python answer.py
times+=("$(now)")
venv/bin/pip check
downloaded="$(du -sb wheels | cut -f1)" installed="$(du -sb venv | cut -f1)" size="$(stat -c %s "$wheel")"
python3 - "${times[@]}" >"$record" <<PROGRAM
import json, sys
times = [float(word) for word in sys.argv[1:]]
steps = ("environment", "download", "install", "first answer", "second answer")
seconds = {step: round(b - a, 1) for step, a, b in zip(steps, times, times[1:])}
waiting = round(times[4] - times[0], 1)
megabytes = {"downloads": round($downloaded / 1e6, 1), "installed": round($installed / 1e6, 1), "wheel of lbq": round($size / 1e6, 1)}
print(json.dumps({"seconds": seconds, "until the first answer": waiting, "megabytes": megabytes}, indent=2))
PROGRAM
cat "$record"
