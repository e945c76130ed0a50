"""One bad node among good ones is named, a fleet of few or of zeros is not called healthy."""

from __future__ import annotations

from gpuwatch.model import ProbeResult, ProbeStatus
from gpuwatch.verdict.outliers import Node, outliers
from gpuwatch.verdict.verdicts import Level, Verdict
from verdict.parts import result, runs, value


def node(name: str, *figures: float) -> Node:
    return Node(name, tuple(runs(figures, uuid=f"GPU-{name}")))


def fleet(*figures: float) -> list[Node]:
    return [node(f"n{number}", figure) for number, figure in enumerate(figures)]


def test_the_slow_node_is_named_with_its_device() -> None:
    judged = outliers(fleet(700, 702, 698, 705, 560))
    bad = [row for row in judged.rows if row.verdict is Verdict.OUTLIER]
    assert [(row.device, row.device_uuid, row.level) for row in bad] == [("n4 cuda:0", "GPU-n4", Level.CRITICAL)]
    assert bad[0].reason == "20.0% worse than the middle of 5"
    assert judged.exit_code == 2


def test_the_natural_spread_of_five_percent_is_none() -> None:
    assert outliers(fleet(700, 720, 690, 710, 675)).exit_code == 0
    assert outliers(fleet(700, 720, 690, 710, 640)).exit_code == 1
    assert outliers(fleet(700, 701, 699, 700, 688), max_regression=0.01).exit_code == 1


def test_a_faster_node_is_no_outlier() -> None:
    assert outliers(fleet(700, 702, 698, 705, 900)).exit_code == 0


def test_less_time_is_better_here_too() -> None:
    nodes = [
        Node(name, (result(value("enqueue", us, "µs", higher=False), probe="launch", uuid=name),))
        for name, us in (("a", 3.0), ("b", 3.1), ("c", 3.0), ("d", 9.0), ("e", 1.0))
    ]
    assert [row.device for row in outliers(nodes).rows if row.verdict is Verdict.OUTLIER] == ["d cuda:0"]


def test_too_few_nodes_are_not_a_healthy_fleet() -> None:
    judged = outliers(fleet(700, 200, 700))
    assert judged.exit_code == 3
    assert judged.notes[0].startswith("matmul on NVIDIA H200: 3 of 4 peers that are needed")


def test_zeros_all_alike_are_invalid_and_not_homogeneous() -> None:
    judged = outliers(fleet(0, 0, 0, 0, 0))
    assert {row.verdict for row in judged.rows} == {Verdict.INVALID}
    assert judged.exit_code == 3


def test_other_conditions_are_other_peers() -> None:
    capped = [Node(f"c{i}", tuple(runs([500.0], uuid=f"c{i}", settings={"power_limit_w": "400"}))) for i in range(4)]  # type: ignore[arg-type]
    assert outliers([*fleet(700, 702, 698, 705), *capped]).exit_code == 0


def test_a_node_that_measures_less_than_the_others_is_told() -> None:
    def two(name: str) -> tuple[ProbeResult, ...]:
        return (*node(name, 700.0).results, result(value("triad", 4000.0, "GB/s"), probe="memory", uuid=name))

    nodes = [*(Node(name, two(name)) for name in "abcd"), node("e", 700.0)]
    judged = outliers(nodes)
    (missing,) = [row for row in judged.rows if row.verdict is Verdict.MISSING]
    assert (missing.device, missing.probe, missing.reason) == ("e", "memory", "4 of 5 nodes have it")


def test_a_node_whose_probe_failed_is_told() -> None:
    dead = Node("n9", (result(status=ProbeStatus.FAILED, message="signal 9"),))
    judged = outliers([*fleet(700, 700, 700, 700), dead])
    assert [(row.device, row.verdict) for row in judged.rows if row.level is not Level.OK] == [
        ("n9 cuda:0", Verdict.ERROR)
    ]
    assert judged.exit_code == 3


def test_a_file_without_a_result_is_a_row_of_its_own_and_hides_nothing() -> None:
    nodes = [Node(f"n{i}", (runs([600.0 if i == 3 else 700.0], uuid=f"GPU-{i}")[0],)) for i in range(8)]
    judged = outliers(nodes, unread={"n9.json": "damaged: Input data was truncated"})
    broken = next(row for row in judged.rows if row.verdict is Verdict.ERROR)
    assert (broken.name, broken.level, broken.reason) == ("n9.json", Level.UNKNOWN, "damaged: Input data was truncated")
    assert [row.device for row in judged.rows if row.verdict is Verdict.OUTLIER] == ["n3 cuda:0"]
    assert outliers([node for node in nodes if node.name != "n3"], unread={"n9.json": ""}).exit_code == 3
    assert outliers([], unread={"n9.json": ""}).exit_code == 3
