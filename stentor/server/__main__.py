"""`python -m stentor.server serve ...`: the server without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from stentor.server.cli import add_parser

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="stentor.server")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args()
    sys.exit(args.func(args))
