"""Hostile bundles with a right digest: Python and C++ both refuse each, or both accept it.

    cmake -S native -B build -DLBQ_SANITIZE=address,undefined && cmake --build build -t lbq-run
    python tests/native/crafted_bundles.py build/lbq-run --out results/faults/crafted-bundles.json

Where ``mutate.py`` draws at random, this goes through every place: values of manifest and table,
JSON as text, tensors, and what nodes read. Bundles that both accept are run by
all implementations of lbq-run and by the dense backend, which must give the same integers.
"""

import argparse
import collections
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from bundles import EditableBundle
from formats.bundle.mutate import places, size_of, write_true_bounds
from native.make_corpus import CORPUS

from lbq.errors import BoundError
from lbq.formats import BundleError, load_network
from lbq.runtime import run_network
from lbq.train.provenance import git_commit

ISAS = ("scalar", "interpreter", None)
RUNNABLE = 2**16

VALUES = [0, 1, -1, 2, 127, 128, 255, 256, 4096, 4097, 2**16, 2**24, 2**31 - 1, 2**31, 2**32]
VALUES += [2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1]
VALUES += [10**40, 0.0, -0.0, 0.5, 1.0, 1e308, -1e308, 5e-324, True, False, None, "", "input"]
VALUES += ["forward", "__class__", "a.b", ".", "..", "../x", "a/b", "\0", "\n", "\u202e", "\ud800"]
VALUES += ["\udc00\ud800", "é" * 128, "é" * 129, "F32", "I8", "U8", "BOOL", "sum", "<b>", [], {}]
VALUES += [[0], [1], [-1], [1, 1], [0, 0], [2**31, 2**31], [2**63, 2], [1] * 9, [[]], [None], [{}]]
"""As documents: sizes, offsets, types and names that nobody writes."""

TEXTS = ["01", "-01", "+1", "1.", ".5", "-", "1e", "1e+", "0x10", "1_000", "1e2", "1E2", "100e-2"]
TEXTS += ["-0", "-0.0", "1.0", "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "nan"]
TEXTS += ["9" * 400, "9" * 4000, "9" * 5000, "1." + "0" * 5000, "0." + "0" * 5000 + "1", "1 2"]
TEXTS += ["true", "True", "TRUE", "null", "None", "nul", "undefined", "", " ", "1,", ",1", "[1,]"]
TEXTS += ["[,]", "[1 2]", '{"a":1,}', "{'a': 1}", "{a: 1}", '{"a"}', '{"a":}', '{"a":1,"a":1}']
TEXTS += [r'{"a":1,"\u0061":1}', '{"":1,"":2}', "[1]]", "{{}}", "/*x*/1", "1//x", "#1", "\v1"]
TEXTS += ["\f1", "\ufeff1", "\u00a01", "\t1\r\n", '"\t"', '"\n"', '"\x7f"', '"\x00"', r'"\x41"']
TEXTS += [r'"\u00"', r'"\u00zz"', r'"\u0000"', r'"\ud800"', r'"\ud83d\ude00"', r'"\ude00\ud83d"']
TEXTS += [r'"\ud800x"', r'"\/"', r'"\a"', r'"\U00000041"', '"', "'a'", '"a', '"\\"', r'"\u+123"']
TEXTS += [
    r'"\u 123"',
    r'"\u12_3"',
    "\u0967",
    "\uff11",
    "1\u0661",
    "--1",
    "1-1",
    "1e1.5",
    "0b1",
    "1n",
    "-a",
]
TEXTS += ["[" * n + "]" * n for n in (10, 400, 498, 499, 500, 501, 900, 1100, 2000)]
TEXTS += ['{"a":' * n + "1" + "}" * n for n in (400, 497, 498, 499, 500, 501, 1100, 2000)]
TEXTS += ["[" * 100_000, '{"a":' * 50_000]
"""As JSON: what one parser may take and another may not."""

BYTES = [b"\xff", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f"]
BYTES += [b"\x80", b"\xfe\xff", b"\xc3", b"\xf8\x88\x80\x80\x80", b"\xef\xbf\xbf"]
"""In a string: not UTF-8, but for the last."""

AROUND = [("\ufeff", ""), ("", "{}"), ("", "\0"), ("[", "]"), ("", " \n\t\r"), ("\f", "")]
AROUND += [("", ","), ("//x\n", ""), ("", "x"), (" " * 999, ""), ("", "\u00a0")]
"""Before and behind a document."""

_MARK = "@@here@@"


def documents(data, every):
    """Replace values of manifest and table by hostile ones: every ``every``-th pair of them."""
    for part in ("manifest", "table"):
        for number in range(len(places(getattr(EditableBundle(data), part)))):
            for value in VALUES[number % every :: every]:
                draft = EditableBundle(data)
                box, key = places(getattr(draft, part))[number]
                if type(box[key]) is type(value) and box[key] == value:
                    continue
                box[key] = copy.deepcopy(value)
                yield f"{part} value", draft.pack()


def structures(data):
    """Drop, double, rename and exchange every entry of manifest and table."""
    for part in ("manifest", "table"):
        for number in range(len(places(getattr(EditableBundle(data), part)))):
            for how in ("drop", "double", "rename", "wrap", "text", "negate", "grow", "reverse"):
                draft = EditableBundle(data)
                box, key = places(getattr(draft, part))[number]
                value = box[key]
                if how == "drop":
                    del box[key]
                elif how == "double" and isinstance(box, list):
                    box.insert(key, copy.deepcopy(value))
                elif how == "rename" and isinstance(box, dict):
                    box[key + " "] = box.pop(key)
                elif how == "wrap":
                    box[key] = [value]
                elif how == "text":
                    box[key] = str(value)
                elif how == "negate" and type(value) is int:
                    box[key] = -value
                elif how == "grow" and type(value) is int:
                    box[key] = value + 1
                elif how == "reverse" and isinstance(value, list):
                    box[key] = value[::-1]
                else:
                    continue
                yield f"{part} {how}", draft.pack()


def texts(data):
    """Write hostile JSON in the place of a value, of a key and around the whole document."""
    draft = EditableBundle(data)
    for part in ("manifest", "table"):
        whole = json.dumps(getattr(draft, part))
        some = places(getattr(draft, part))
        origin = [(box, key) for box, key in some if key == "origin"]
        for number in {0, len(some) // 2, len(some) - 1, *(some.index(one) for one in origin)}:
            for text in TEXTS:
                draft = EditableBundle(data)
                box, key = places(getattr(draft, part))[number]
                box[key] = _MARK
                raw = json.dumps(getattr(draft, part)).replace(f'"{_MARK}"', text)
                yield f"{part} text", draft.pack(**{part: raw.encode()})
                if key == "origin":  # whatever is in there is nobody's affair, if it is JSON
                    raw = json.dumps(getattr(draft, part)).replace(
                        f'"{_MARK}"', f'{{"note": {text}}}'
                    )
                    yield f"{part} note", draft.pack(**{part: raw.encode()})
            for raw in BYTES:
                draft = EditableBundle(data)
                box, key = places(getattr(draft, part))[number]
                box[key] = _MARK
                text = json.dumps(getattr(draft, part)).encode().replace(_MARK.encode(), raw)
                yield f"{part} bytes", draft.pack(**{part: text})
        for before, after in AROUND:
            draft = EditableBundle(data)
            yield f"{part} around", draft.pack(**{part: (before + whole + after).encode()})
    for raw in (b"", b"null", b"1", b'""', b"[]", b"{}", b"{" * 1000, b"\0" * 64):
        for part in ("manifest", "table"):
            yield f"{part} replaced", EditableBundle(data).pack(**{part: raw})


def tensors(data):
    """Overlap, move, exchange and cut tensors; fill each with hostile numbers."""
    names = list(EditableBundle(data).table)
    for name in names:
        for fill in (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"):
            for is_true in (False, True):
                draft = EditableBundle(data)
                where = draft.region(name)
                size = where.stop - where.start
                draft.numbers[where] = (fill * size)[:size]
                if is_true:
                    write_true_bounds(draft)
                yield "tensor filled", draft.pack()
        for move in (-8, -4, -1, 1, 4, 8, 2**31, 2**62, -(2**62)):
            for ends in ((0,), (1,), (0, 1)):
                draft = EditableBundle(data)
                for end in ends:
                    draft.table[name]["data_offsets"][end] += move
                yield "tensor moved", draft.pack()
            draft = EditableBundle(data)
            for node in draft.manifest["nodes"]:
                for key, region in node["tensors"].items():
                    if region is not None and f"{node['path']}.{key}" == name:
                        region["offset"] += move
            yield "offset moved", draft.pack()
    for first in names:
        for second in names:
            if first < second:
                draft = EditableBundle(data)
                table = draft.table
                table[first], table[second] = table[second], table[first]
                yield "tensors exchanged", draft.pack()
                draft = EditableBundle(data)
                draft.table[first] = dict(draft.table[second])
                yield "tensors overlap", draft.pack()


def wirings(data):
    """Let every node read every other one: cycles, forward references, wrong signals."""
    paths = [node["path"] for node in EditableBundle(data).manifest["nodes"]]
    for number in range(len(paths)):
        for other in ("input", *paths):
            draft = EditableBundle(data)
            node = draft.manifest["nodes"][number]
            for place in range(len(node["inputs"])):
                draft = EditableBundle(data)
                draft.manifest["nodes"][number]["inputs"][place] = other
                yield "wiring", draft.pack()
            draft = EditableBundle(data)
            draft.manifest["nodes"][number]["inputs"].append(other)
            yield "one input more", draft.pack()
            draft = EditableBundle(data)
            draft.manifest["nodes"][number]["kind"] = next(
                (n["kind"] for n in draft.manifest["nodes"] if n["path"] == other), "repeat"
            )
            yield "kind of another node", draft.pack()
        draft = EditableBundle(data)
        nodes = draft.manifest["nodes"]
        nodes.insert(random.Random(number).randrange(len(nodes)), nodes.pop(number))
        yield "node moved", draft.pack()


def crafted(name, every=1):
    """Yield ``(kind, bytes)`` of all crafted bundles of one sound one."""
    data = (CORPUS / f"{name}.lbq").read_bytes()
    yield from texts(data)
    yield from tensors(data)
    yield from wirings(data)
    yield from structures(data)
    yield from documents(data, every)


def python_rule(path):
    """Return the rule by which Python refuses a file, or "ok"; other errors escape."""
    try:
        load_network(path)
    except BundleError as error:
        return error.rule
    except BoundError:
        return "bound"
    return "ok"


def native_rules(program, paths):
    """Return the same of lbq-run; raise if it crashed."""
    done = subprocess.run(
        [program, "--check", *paths], capture_output=True, text=True, errors="replace", check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode not in (0, 1) or done.stderr or len(lines) != len(paths):
        if len(paths) == 1:
            raise RuntimeError(f"lbq-run ended with {done.returncode}: {done.stderr[-3000:]}")
        half = len(paths) // 2
        return native_rules(program, paths[:half]) + native_rules(program, paths[half:])
    return [
        line.removeprefix(f"{p}: ").split(": ")[0] for p, line in zip(paths, lines, strict=True)
    ]


def differing(program, path):
    """Run a bundle that both accept; return by how many integers implementations differ."""
    if size_of(path) > RUNNABLE:
        return None
    network = load_network(path)
    generator = torch.Generator().manual_seed(1)
    shape = network.example(3).shape
    inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    samples = inputs.transpose(0, 1).contiguous() if network.takes_frames else inputs
    found = run_network(network, inputs, backend="dense")
    outputs = found if isinstance(found, tuple) else (found,)
    answers = {}
    for isa in ISAS:
        options = () if isa is None else ("--isa", isa)
        done = subprocess.run(
            [program, path, "-", *options],
            input=samples.numpy().tobytes(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{isa} ended with {done.returncode}: {done.stderr[-3000:]!r}")
        answers[isa] = done.stdout
    first, *others = answers.values()
    assert all(other == first for other in others), path
    rows = [[int(cell) for cell in line.split(",")] for line in first.decode().splitlines()[1:]]
    return int(_rows_of(outputs, network) != rows)


def _rows_of(outputs, network):
    """Return what lbq-run writes: index (and timestep), then class and logits of every output."""
    gives_sequence = network.values()[network.outputs[0]].has_time
    batch_axis = 1 if gives_sequence else 0
    rows = []
    for sample in range(3):
        parts = [output.select(batch_axis, sample) for output in outputs]
        instants = range(network.timesteps) if gives_sequence else [None]
        for t in instants:
            row = [sample] if t is None else [sample, t]
            for part in parts:
                logits = (part if t is None else part[t]).flatten().tolist()
                row += [logits.index(max(logits)), *logits]
            rows.append(row)
    return rows


def attack(program, names, *, every=1, folder):
    """Try the crafted bundles of sound ones; return counts and disagreements."""
    kinds, rules = collections.Counter(), collections.Counter()
    wrong, accepted, ran, slowest, other_rules = [], 0, 0, 0.0, collections.Counter()
    for name in names:
        batch = []
        for number, (kind, data) in enumerate(crafted(name, every)):
            path = folder / f"{name}-{number}.lbq"
            path.write_bytes(data)
            start = time.process_time()
            batch.append((path, kind, python_rule(path)))
            slowest = max(slowest, time.process_time() - start)
            kinds[kind] += 1
        for start in range(0, len(batch), 500):
            some = batch[start : start + 500]
            found = native_rules(program, [path for path, _, _ in some])
            for (path, kind, expected), native in zip(some, found, strict=True):
                rules[expected] += 1
                if (native == "ok") != (expected == "ok"):
                    wrong.append((path.name, kind, expected, native))
                    continue
                if native != expected:  # a file may break two rules
                    other_rules[f"{expected} in Python, {native} in C++"] += 1
                if expected == "ok":
                    accepted += 1
                    differ = differing(program, path)
                    ran += differ is not None
                    if differ:
                        wrong.append((path.name, kind, "integers", differ))
                path.unlink()
            sys.stderr.write(f"{name}: {sum(rules.values())} bundles, {len(wrong)} wrong\n")
    return {
        "bundles": sum(rules.values()),
        "disagreements": len(wrong),
        "accepted": accepted,
        "ran_with_the_same_integers": ran,
        "refused_by_another_rule": dict(sorted(other_rules.items())),
        "slowest_in_python_s": round(slowest, 2),
        "rules": dict(sorted(rules.items())),
        "kinds": dict(sorted(kinds.items())),
    }, wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    names = [path.stem for path in sorted(CORPUS.glob("*.txt"))]
    parser.add_argument("--names", nargs="+", default=names)
    parser.add_argument("--every", type=int, default=1, help="share of the values to try: 1/EVERY")
    parser.add_argument("--keep", type=Path, help="folder for the bundles of disagreements")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        record, wrong = attack(options.program, options.names, every=options.every, folder=folder)
    for one in wrong:
        sys.stderr.write(f"{one}\n")
    record |= {
        "seconds": round(time.time() - start),
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
    }
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
