"""``python -m faudit`` is the command line."""

import sys

from faudit.cli import main

if __name__ == "__main__":
    sys.exit(main())
