"""`python -m stentor.server serve ...`: the server without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from stentor.server.cli import define

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="stentor.server")
    commands = parser.add_subparsers(required=True)
    define(commands.add_parser("serve"))
    define(commands.add_parser("compile"))
    args = parser.parse_args()
    sys.exit(args.func(args))
