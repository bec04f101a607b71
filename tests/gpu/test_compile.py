"""`stentor compile` with a GPU."""

from __future__ import annotations

import pytest

from stentor.cli import main

pytestmark = pytest.mark.gpu


def test_each_model_is_loaded_with_its_graphs_as_the_server_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = [
        "dummy:toy",
        "dummy:toy-utterance",
        "--served-model-name",
        "one",
        "--served-model-name",
        "two",
    ]
    assert main(["compile", *models, "--memory-gb", "0.5", "--max-num-seqs", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["one:", "two:"]
    assert all(int(line[1]) > 0 and line[2] == "graphs," for line in lines)
