"""The page of charts."""

import xml.etree.ElementTree as ET

import pytest

from stentor.bench.report.plot import Chart, Series, page


def test_the_page_is_well_formed_and_draws_every_point_inside_the_frame():
    series = [Series("p50 <&>", [1, 2, 4], [10, 12, 30]), Series("p99", [1, 2, 4], [20, 25, 90])]
    text = page("title <&>", [Chart("TTFA", "load", "ms", series, limit=50.0)], "table <b>")
    assert "title &lt;&amp;&gt;" in text
    assert "table &lt;b&gt;" in text
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    lines = [
        [tuple(map(float, p.split(","))) for p in e.attrib["points"].split()]
        for e in svg.iter("polyline")
    ]
    assert [len(line) for line in lines] == [3, 3]
    assert all(0 <= x <= width and 0 <= y <= height for line in lines for x, y in line)
    # More load is further right, more latency is higher up.
    assert lines[0][0][0] < lines[0][1][0] < lines[0][2][0]
    assert lines[1][2][1] < lines[1][0][1] < lines[0][0][1]
    assert any(e.text == "limit 50" for e in svg.iter("text"))


@pytest.mark.parametrize("y", [[0.0], [5.0], [1e-5, 1e-4], [1e6, 3e6]])
def test_any_range_of_values_can_be_drawn(y):
    page("t", [Chart("c", "x", "y", [Series("s", list(range(len(y))), y)])])


def test_a_chart_without_points_is_left_out():
    assert "<svg" not in page("t", [Chart("c", "x", "y", [Series("s", [], [])])])
