"""A certificate for 127.0.0.1 that tests trust."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NEEDS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None,
    reason="openssl, which makes the test's certificate, is not here",
)


@dataclass(frozen=True)
class Certificate:
    """Files of a key and of its certificate."""

    key: Path
    certificate: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `stentor serve`."""
        return ("--ssl-keyfile", str(self.key), "--ssl-certfile", str(self.certificate))


def make(folder: Path) -> Certificate:
    """Make a certificate that signs itself."""
    made = Certificate(folder / "key.pem", folder / "cert.pem")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += [
        "-keyout",
        str(made.key),
        "-out",
        str(made.certificate),
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return made
