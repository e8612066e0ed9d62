"""``python -m lbq.cli`` is ``lbq``."""

import sys

from lbq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
