"""On PYTHONPATH, hides the packages in STENTOR_TEST_HIDDEN, as if they were not installed."""

import importlib.machinery
import os
import sys

HIDDEN = os.environ["STENTOR_TEST_HIDDEN"].split(",")


class PathFinder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(name, path, target)


sys.meta_path = [PathFinder if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
