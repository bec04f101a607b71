"""onnxruntime without its telemetry. The package imports it from here and nowhere else.

The official wheels for Linux and macOS since 1.29 write an identifier of the machine and a database
of events below the user's home when they are imported, and upload events about sessions and models
(github.com/microsoft/onnxruntime, pull request 27379).
"""

from __future__ import annotations

import os

# Read once, when the library is loaded: its `disable_telemetry_events` comes too late. A user who
# has set the variable keeps the value.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

__all__ = ["onnxruntime"]
