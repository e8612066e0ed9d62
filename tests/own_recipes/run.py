"""Train one of these recipes with options: ``python run.py vgg OUT '{"workers": 2}'``."""

import json
import sys
from importlib import import_module

import lbq

if __name__ == "__main__":
    name, out, options = sys.argv[1:]
    lbq.fit(
        **import_module(name).recipe(),
        out=out,
        options=lbq.RunOptions(device="cpu", **json.loads(options)),
    )
