"""Twelve checkpoints that create a canary file if any part of them is executed.

Their hashes are correct, so that every one of them reaches the parser.
"""

import hashlib
import io
import json
import pickle
import zipfile
from pathlib import Path

import safetensors.torch
import torch

from lbq.config_io import digest


class Payload:
    """Creates the canary when it is unpickled."""

    def __init__(self, canary, how):
        self.canary, self.how = canary, how

    def __reduce__(self):
        code = f"open({str(self.canary)!r}, 'w').close()"
        if self.how == "exec":
            return exec, (code,)
        if self.how == "system":
            return __import__("os").system, (f"touch {self.canary}",)
        return getattr(Path, "touch"), (Path(self.canary),)  # noqa: B009 -- by name, as in an attack


def system_pickle(canary, opcode):
    """Return a pickle that calls os.system, through GLOBAL or through STACK_GLOBAL."""
    call = f"touch {canary}".encode()
    if opcode == "GLOBAL":
        return b"cos\nsystem\n(V" + call + b"\ntR."
    return b"\x80\x04\x8c\x02os\x8c\x06system\x93(V" + call + b"\ntR."


def torch_file(canary, how):
    buffer = io.BytesIO()
    torch.save({"weight": Payload(canary, how)}, buffer)
    return buffer.getvalue()


def zip_file(canary):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", system_pickle(canary, "GLOBAL"))
        archive.writestr("archive/version", "3")
    return buffer.getvalue()


def header(text):
    raw = text.encode()
    return len(raw).to_bytes(8, "little") + raw


def make(folder, canary):
    """Write the twelve; return a description of each by its folder."""
    weights = safetensors.torch.save({"weight": torch.ones(2)})
    target = {"_target_": "os.system", "_args_": [f"touch {canary}"]}
    code = f"__import__('os').system('touch {canary}')"
    kinds = {
        "pickle through __reduce__": pickle.dumps(Payload(canary, "exec")),
        "pickle through os.system": pickle.dumps(Payload(canary, "system")),
        "pickle through a method": pickle.dumps(Payload(canary, "method")),
        "pickle with GLOBAL": system_pickle(canary, "GLOBAL"),
        "pickle with STACK_GLOBAL": system_pickle(canary, "STACK_GLOBAL"),
        "torch.save": torch_file(canary, "exec"),
        "zip of a pickle": zip_file(canary),
        "7z magic before a pickle": b"7z\xbc\xaf\x27\x1c" + system_pickle(canary, "GLOBAL"),
        "metadata of a distributed checkpoint": pickle.dumps(
            {"state_dict": Payload(canary, "exec")}
        ),
        "header that is code": header(code),
        "_target_ in the metadata": weights,
        "a path in the manifest": weights,
    }
    assert len(kinds) == 12
    made = {}
    for number, (kind, data) in enumerate(kinds.items()):
        place = folder / str(number) / "checkpoints"
        place.mkdir(parents=True)
        (place / "000000001.model.safetensors").write_bytes(data)
        (place / ".metadata").write_bytes(pickle.dumps(Payload(canary, "exec")))
        part = "../../../model" if kind == "a path in the manifest" else "model"
        recipe = target if kind == "_target_ in the metadata" else {"name": code}
        body = {
            "format": 2,
            "step": 1,
            "files": {part: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}},
            "metadata": {"recipe": recipe, "num_classes": 10, "progress": target, "loss_scale": {}},
        }
        whole = {"body": body, "sha256": digest(body)}
        text = json.dumps(whole, indent=1, sort_keys=True)
        (place / "000000001.json").write_text(text)
        (folder / str(number) / "recipe.json").write_text(json.dumps(target))
        made[str(number)] = kind
    return made
