"""The small crash run. `make crashes` makes the large one, with all points."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from crash_plan import ALL_CALLS, drawn
from crash_run import crash_run

STAGES = ("corpus", "tokenizer", "pack", "pretrain", "seed-run", "evaluate", "report")


def test_the_demo_comes_to_its_end_through_eight_kills(tmp_path: Path) -> None:
    told: list[str] = []
    crashes = crash_run(tmp_path, 8, 1, told.append)
    assert crashes.wrong == [], told
    assert len(crashes.made) == 8
    assert {kill["target"] for kill in crashes.made} == {"run", "server", "worker", "deployed run", "peer"}
    outside = [kill for kill in crashes.made if kill["target"] != "run"]
    assert all(kill["new"] for kill in outside), "each of them waited for something newly published"


def test_fifty_kills_are_all_points_whatever_the_seed() -> None:
    for seed in range(20):
        plan = drawn(50, random.Random(seed))
        assert sum(plan.kills().values()) == 50
        points = [*plan.early, *(f"seed-run {call}" for call, _ in plan.seed_runs), *plan.late]
        assert {point.partition(" ")[2] for point in points} == {"start", "middle", *ALL_CALLS}
        assert {f"{stage} {where}" for stage in STAGES for where in ("start", "middle")} <= set(points)
    assert drawn(8, random.Random(1)) != drawn(8, random.Random(2))
    assert drawn(8, random.Random(1)) == drawn(8, random.Random(1))


@pytest.mark.parametrize("kills", [7, 40, 51])
def test_other_numbers_of_kills_are_refused(kills: int) -> None:
    with pytest.raises(SystemExit, match="from 8 to 39, or 50"):
        drawn(kills, random.Random(1))
