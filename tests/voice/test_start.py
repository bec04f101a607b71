"""Cost of the built-in voice before it speaks."""

import subprocess
import sys

from tests.helpers.patience import STUCK_S

PROGRAM = "import stentor, sys; stentor.TTS(device='cpu').close(); print(*sorted(sys.modules))"
HEAVY = {
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "scipy",
    "typeguard",
    "triton",
}  # a second each, more or less


def test_loading_the_voice_imports_nothing_heavy_besides_torch():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=STUCK_S
    )
    assert HEAVY.isdisjoint(done.stdout.split())
