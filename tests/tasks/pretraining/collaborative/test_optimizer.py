"""A swarm's global steps equal those of a plain loop over the union of its batches, whatever happens to others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from member_driver import ROWS, build, train_plainly, weights_of

from tasks.pretraining.collaborative.state import relative_distance
from tasks.pretraining.settings import PretrainingSettings

MATCHMAKING, TIMEOUT = 2.0, 5.0
TOGETHER = 3
"""Global steps of two peers."""


def settings(optimizer: str = "adamw", compression: str = "none", average_state_every: int = 1000):
    return PretrainingSettings(
        steps=10,
        batch_size=8 * ROWS,
        optimizer=optimizer,
        learning_rate=0.05,
        warmup_steps=2,
        clip_norm=0.5,
        collaborative={
            "matchmaking_seconds": MATCHMAKING,
            "averaging_timeout_seconds": TIMEOUT,
            "compression": compression,
            "average_state_every": average_state_every,
        },
    )


def assert_close(weights: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def batches(rounds: list[dict]) -> list[list[int]]:
    return [one["batches"] for one in rounds]


@pytest.fixture(scope="module")
def alone(member):
    one = member("alone")
    one.ask("start")
    return one


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_one_peer_alone_is_a_plain_loop(alone, optimizer):
    asked = settings(optimizer)
    alone.ask("make", settings=asked.model_dump_json(), target=4 * ROWS, run_id=optimizer)
    rounds = alone.ask("train", until=3, first=0)
    weights = alone.ask("weights")
    assert [(one["step"], one["samples"], one["outcome"], one["group"]) for one in rounds] == [
        (step, 4 * ROWS, "alone", 1) for step in (1, 2, 3)
    ]
    assert all(one["reducing"] == 0 and 0 <= one["matching"] < 1 for one in rounds)
    assert batches(rounds) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert_close(weights, train_plainly(asked, batches(rounds)))
    # each of these would be another result
    wrong = [
        train_plainly(asked, batches(rounds), last_only=True),
        train_plainly(asked, batches(rounds), clip_each=True),
        train_plainly(asked.model_copy(update={"clip_norm": None}), batches(rounds)),
        train_plainly(asked.model_copy(update={"warmup_steps": 3}), batches(rounds)),
        train_plainly(asked, [[], *batches(rounds)]),  # the rates of one step later, and its bias correction
        weights_of(build(), asked),
    ]
    assert [relative_distance(weights, one) > 1e-3 for one in wrong] == [True] * len(wrong)


FAILING = """
import concurrent.futures
parse = self.optimizer.tracker._parse_swarm_progress_data
def with_another_peer(metadata):
    progress = parse(metadata)
    progress.num_peers = 2
    return progress
self.optimizer.tracker._parse_swarm_progress_data = with_another_peer
self.optimizer.tracker.global_progress.num_peers = 2
class Broken(concurrent.futures.Future):
    began_allreduce, triggered = True, True
def step(**arguments):
    if HOW == "raises":
        raise RuntimeError("cannot")
    self.optimizer.grad_averager.load_accumulators_into_averager_()
    with self.optimizer.grad_averager.get_tensors() as tensors:
        for tensor in tensors:
            # what an averaging leaves behind that breaks off, or in which nobody had any gradients
            tensor.fill_(float("nan") if HOW == "gives no numbers" else 1e6)
    broken = Broken()
    if HOW == "gives no numbers":
        broken.set_result({"group": [], "training": 2, "aggregated": 0.5, "reducing": 0.0, "complete": True})
        return broken
    broken.set_exception(RuntimeError("all-reduce broke off"))
    return broken
self.optimizer.grad_averager.step = step
"""


@pytest.mark.parametrize(
    ("how", "outcome"), [("raises", "no group"), ("breaks off", "failed"), ("gives no numbers", "failed")]
)
def test_an_averaging_that_fails_leaves_the_own_gradients(alone, how, outcome):
    asked = settings()
    alone.ask("make", settings=asked.model_dump_json(), target=4 * ROWS, run_id=how.replace(" ", "-"))
    alone.ask("run", code=f"HOW = {how!r}\n{FAILING}")
    rounds = alone.ask("train", until=3, first=0)
    weights = alone.ask("weights")
    assert [(one["samples"], one["outcome"], one["group"]) for one in rounds] == [(4 * ROWS, outcome, 1)] * 3
    assert_close(weights, train_plainly(asked, batches(rounds)))


def test_the_state_that_is_sent_is_a_copy_of_whole_steps(alone):
    alone.ask("make", settings=settings().model_dump_json(), target=ROWS, run_id="copy")
    alone.ask("train", until=2, first=0)
    found = alone.ask(
        "run",
        code="""
import threading
averager, whole = self.optimizer.state_averager, self.optimizer._whole_steps
metadata, tensors, _ = averager.get_current_state()
before = [tensor.clone() for tensor in tensors]
with whole:  # a global step is under way
    asked = []
    thread = threading.Thread(target=lambda: asked.append(averager.get_current_state()))
    thread.start()
    thread.join(0.5)
    waited = thread.is_alive()
    with torch.no_grad():
        for weight in self.model.parameters():
            weight += 1.0
        for values in averager.optimizer.state.values():
            values["exp_avg"] += 1.0
thread.join(10)
count = len(list(self.model.parameters()))
answer = {
    "unchanged": all(one.equal(other) for one, other in zip(before, tensors)),
    "waited": waited,
    "moved": [float((one - other).mean()) for one, other in zip(asked[0][1][:count], before)],
    "epoch": metadata["epoch"],
}
""",
    )
    assert found["unchanged"]
    assert found["waited"]
    assert found["moved"] == pytest.approx([1.0] * 6, abs=1e-5)
    assert found["epoch"] == 2


DIE_IN_AVERAGING = """
import signal
from tasks.pretraining.collaborative.averaging import PeerGradientAverager
self.dies = multiprocessing.Value("b", 0)
aggregate, dies = PeerGradientAverager._aggregate_with_group, self.dies
async def aggregate_or_die(*arguments, **options):
    if dies.value:
        os.killpg(0, signal.SIGKILL)
    return await aggregate(*arguments, **options)
PeerGradientAverager._aggregate_with_group = aggregate_or_die
"""


KINDS = {
    "half": settings(compression="float16", average_state_every=1),
    "by size": settings(compression="by-size", average_state_every=1),
    "exact": settings(),
}
WIDE = 11_000
"""Makes a weight of 66,000 values, which ``by-size`` exchanges in 8 bit."""


@pytest.fixture(scope="module")
def pair(member):
    """Two peers: steps of each kind; then one in which the other is killed in the averaging, and one after that."""
    one, other = member("one"), member("other")
    addresses = one.ask("start")
    other.ask("start", addresses=addresses)
    other.ask("run", code=DIE_IN_AVERAGING)

    def both(do: str, **arguments):
        return [done() for done in [peer.tell(do, **arguments) for peer in (one, other)]]

    def together(kind: str, run_id: str) -> SimpleNamespace:
        asked, width = KINDS[kind], WIDE if kind == "by size" else 16
        both("make", settings=asked.model_dump_json(), target=8 * ROWS, run_id=run_id, width=width)
        slow = other.tell("train", until=TOGETHER, first=2000, pause=0.25, others=1)
        fast = one.tell("train", until=TOGETHER, first=1000, pause=0.1, others=1)
        result = SimpleNamespace(rounds=(fast(), slow()), weights=both("weights"))
        fast, slow = result.rounds
        result.union = [here["batches"] + there["batches"] for here, there in zip(fast, slow, strict=False)]
        result.expected = train_plainly(asked, result.union, build(width=width))
        return result

    results = SimpleNamespace()
    for kind in KINDS:
        # On a machine that is busy for seconds a peer misses the answer of another, so each kind has a second try.
        for run_id in (f"{kind.replace(' ', '-')}-{number}" for number in range(2)):
            vars(results)[kind] = found = together(kind, run_id)
            if all(one["outcome"] == "averaged" for peer in found.rounds for one in peer):
                break
        if kind == "half":
            found.sizes, found.final = both("average"), both("weights")
    other.ask("run", code="self.dies.value = 1")
    other.tell("train", until=TOGETHER + 1, first=2500, pause=0.25)
    results.killed, results.after_kill = (
        one.ask("train", until=TOGETHER + 1, first=1500, pause=0.1),
        one.ask("weights"),
    )
    other.process.wait(10)
    results.gone, results.after_gone = one.ask("train", until=TOGETHER + 2, first=1600, pause=0.1), one.ask("weights")
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_two_peers_take_every_step_together(pair, kind):
    rounds = vars(pair)[kind].rounds
    for peer in rounds:
        assert [(one["step"], one["outcome"], one["group"]) for one in peer] == [
            (step, "averaged", 2) for step in range(1, TOGETHER + 1)
        ]
        assert all(one["samples"] == ROWS * len(one["batches"]) > 0 for one in peer)
        assert all(0 <= one["matching"] < TIMEOUT and 0 < one["reducing"] < TIMEOUT for one in peer)
    fast, slow = rounds
    assert sum(one["samples"] for one in fast) > sum(one["samples"] for one in slow)
    # a step ends when its samples are there, and not much later
    together = [one["samples"] + other["samples"] for one, other in zip(fast, slow, strict=True)]
    assert all(8 * ROWS <= samples <= 16 * ROWS for samples in together), together


def test_two_exact_peers_are_a_plain_loop_over_the_union(pair):
    exact = pair.exact
    fast, slow = exact.rounds
    for weights in exact.weights:
        assert_close(weights, exact.expected)
    assert relative_distance(*exact.weights) < 1e-5
    # not the mean of the two peers' means, and not either's own
    evenly = [one["batches"] * len(other["batches"]) + other["batches"] * len(one["batches"])
              for one, other in zip(fast, slow, strict=True)]  # fmt: skip
    for wrong in (evenly, batches(fast), batches(slow)):
        assert relative_distance(exact.expected, train_plainly(KINDS["exact"], wrong)) > 1e-3


@pytest.mark.parametrize(("kind", "bound"), [("half", 1e-3), ("by size", 1e-2)])
def test_two_peers_with_compression_stay_together(pair, kind, bound):
    found = vars(pair)[kind]
    assert 0 < relative_distance(*found.weights) < 1e-3
    assert all(relative_distance(found.expected, weights) < bound for weights in found.weights)
    start = weights_of(build(width=WIDE if kind == "by size" else 16), KINDS[kind])
    assert relative_distance(found.expected, start) > 4 * bound


def test_a_last_averaging_of_the_weights(pair):
    assert pair.half.sizes == [2, 2]
    assert relative_distance(*pair.half.final) < 1e-3


def test_if_the_other_is_killed_in_the_averaging_the_own_gradients_are_used(pair):
    steps = [*pair.exact.union, *batches(pair.killed)]
    assert_close(pair.after_kill, train_plainly(KINDS["exact"], steps))
    (killed,) = pair.killed
    assert killed["matching"] + killed["reducing"] < TIMEOUT + 2


def test_if_the_other_is_killed_in_the_averaging_the_round_says_so(pair):
    (killed,) = pair.killed
    assert (killed["outcome"], killed["group"]) == ("failed", 1)


def test_after_the_other_is_gone_no_group_is_found_and_the_own_gradients_are_used(pair):
    (gone,) = pair.gone
    assert (gone["step"], gone["outcome"], gone["group"], gone["reducing"]) == (TOGETHER + 2, "no group", 1, 0)
    assert gone["samples"] >= 8 * ROWS
    assert 0.5 < gone["matching"] < TIMEOUT + 2
    steps = [*pair.exact.union, *batches(pair.killed), *batches(pair.gone)]
    assert_close(pair.after_gone, train_plainly(KINDS["exact"], steps))
