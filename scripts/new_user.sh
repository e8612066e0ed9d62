#!/usr/bin/env bash
# A new user on Monday: an empty environment, the wheel, then README and tour to their ends.
#
#     scripts/new_user.sh dist/lbq-0.1.0-*.whl
#
# What the pages print is compared with what they say (scripts/follow.py). With LBQ_DATA set, CIFAR-10 is taken from
# there instead of the hub; LBQ_PAGES="README.md" leaves the tour out. Without an argument the wheel is built from what
# is committed. LBQ_EMPTY_VENV names an environment that was empty a moment ago and has torch, to save a minute.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"

export PIP_CONSTRAINT="$root/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1 ORT_DISABLE_TELEMETRY=1
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
say() { printf '\n-- %s (%ss)\n' "$1" "$SECONDS"; }

wheel="${1:-}"
if [ -z "$wheel" ]; then
    say "a wheel of what is committed"
    git -C "$root" archive HEAD | tar -x -C "$scratch" --one-top-level=source
    python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$scratch/dist" "$scratch/source"
    wheel="$(ls "$scratch"/dist/*.whl)"
fi

say "an empty environment"
venv="${LBQ_EMPTY_VENV:-$scratch/venv}"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet torch==2.13.0
"$venv/bin/pip" install --quiet "$wheel[data,onnx]"

say "README and tour"
# Nothing of the checkout is visible but the pages and the one who reads them.
export HOME="$scratch/home" XDG_CACHE_HOME="$scratch/home/.cache" PATH="$venv/bin:$PATH" PYTHONPATH=
mkdir -p "$HOME"
cp "$root/README.md" "$root/docs/tour.md" "$root/scripts/follow.py" "$scratch"
cd "$scratch"
python -c 'import lbq; assert "site-packages" in lbq.__file__, lbq.__file__'
test "$(lbq --version)" = "$(python -c 'import lbq; print(lbq.__version__)')"
read -ra pages <<<"${LBQ_PAGES:-README.md tour.md}"
python follow.py "${pages[@]}"

say "done"
