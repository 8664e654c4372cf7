"""``python -m faudit``: the command line, where its script is not on the path."""

from faudit.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
