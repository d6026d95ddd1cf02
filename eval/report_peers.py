"""What a report says of the peers that pretrained together: their table, how it went, and what to be careful about.

The figures are the ledger's. A peer's name may be a stranger's: only :attr:`PeersView.summary` and the table bear
names, and both formats show those without making links of addresses in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from eval.peers_chart import contribution_chart
from eval.report_schema import Caution, CollaborationFacts
from eval.report_tables import Table, duration, make_table
from eval.report_wording import per_cent

FEW_GROUPED_STEPS = 0.8
"""Below this share of the global steps in the largest group, the peers often worked apart."""

LARGE_SHARE = 0.8
"""Above this share of the samples, one peer did the work of all."""

MANY_LOST_ROUNDS = 0.25
"""From this share of the global steps on, a cause of lost rounds is told with its remedy."""

MUCH_COMMUNICATION = 0.5
"""Above this share of a step's time, peers wait more than they compute."""

_NAMED_PEERS = 3
"""With more peers than this, the sentence names only the one that gave most."""

_NUMBERS = dict(enumerate(("Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"), start=2))


@dataclass(frozen=True)
class PeersView:
    """The section on the peers as shown."""

    summary: str
    ending: str
    """That the deadline ended it; empty if the target was reached."""
    chart: Markup
    """What each peer gave; empty for one alone."""
    table: Table
    pace: str
    """What a step took, in samples and seconds."""
    words: str
    """What the table's words mean."""


def peers_view(facts: CollaborationFacts) -> PeersView:
    """The section's sentences and its table."""
    return PeersView(
        summary=f"{_together(facts)} {_agreement(facts)}",
        ending=_ending(facts),
        chart=contribution_chart(
            _names(facts), [peer.samples for peer in facts.peers], [peer.lost for peer in facts.peers]
        ),
        table=_table(facts),
        pace=_pace(facts),
        words="Computing is work on texts, matching is looking for a group to average with, reducing is averaging. "
        "A round is averaged when the gradients of a group were, alone when a peer used only its own.",
    )


def peer_cautions(facts: CollaborationFacts | None) -> Iterator[Caution]:
    """What to be careful about in a run by several peers; nothing where there is no ledger. No text names a peer."""
    if facts is None:
        return
    if ending := _ending(facts):
        yield Caution(
            kind="ended by deadline",
            text=f"{ending} The model is less trained than the recipe asks for. More peers would get further, and so "
            "would a larger pretraining.collaborative.deadline_minutes.",
            important=True,
        )
    largest, share = _largest_group(facts)
    several = len(facts.peers) > 1
    if several and largest == 1:
        yield Caution(
            kind="no groups",
            text="The peers never averaged their gradients with each other: every global step used those of one peer.",
        )
    elif several and share < FEW_GROUPED_STEPS:
        yield Caution(
            kind="few grouped steps",
            text=f"Only {_rounded(share)} of the global steps averaged the gradients of {largest} peers, the largest "
            "group there was. In the others fewer were there, or they did not find each other.",
        )
    most = max((peer.share for peer in facts.peers), default=0.0)
    if several and most > LARGE_SHARE:
        yield Caution(
            kind="one peer gave most",
            text=f"One of the {len(facts.peers)} peers gave {_rounded(most)} of the samples: this says little about "
            "training together.",
        )
    for outcome, what, key in (
        ("no group", "found no group in time", "matchmaking_seconds"),
        ("failed", "could not finish averaging", "averaging_timeout_seconds"),
    ):
        lost = facts.outcomes.get(outcome, 0) / max(1, facts.step)
        if lost >= MANY_LOST_ROUNDS:
            yield Caution(
                kind=f"many rounds: {outcome}",
                text=f"In {_rounded(lost)} of the global steps the peers {what}: raise "
                f"pretraining.collaborative.{key}.",
            )
    communication = _communication(facts)
    if communication > MUCH_COMMUNICATION:
        yield Caution(
            kind="much communication",
            text=f"Of a global step's time, {_rounded(communication)} went into matching and reducing: a larger "
            "pretraining.batch_size would let the peers compute more between two averagings.",
        )


def _together(facts: CollaborationFacts) -> str:
    count = len(facts.peers)
    if count == 0:
        return "No peer contributed anything."
    largest, share = _largest_group(facts)
    names, steps = _names(facts), f"{facts.step:,} global step{'s' * (facts.step != 1)}"
    if count == 1:
        return f"One peer, {names[0]}, trained alone: it gave all samples of the {steps}."
    number = _NUMBERS.get(count, f"{count:,}")
    if largest == 1:
        grouped = f"none of the {steps} averaged the gradients of more than one peer"
    else:
        part = f"all {steps}" if share == 1 else f"{_rounded(share)} of the {steps}"
        grouped = f"{part} averaged the gradients of {largest:,} peers"
    shares = [_rounded(peer.share) for peer in facts.peers]
    if count > _NAMED_PEERS:
        most = max(range(count), key=lambda at: facts.peers[at].share)
        given = f"{names[most]} gave most, {shares[most]} of the samples"
    else:
        others = [f"{name} {part}" for name, part in zip(names[1:], shares[1:], strict=True)]
        given = ", ".join([f"{names[0]} gave {shares[0]} of the samples", *others])
    return f"{number} peers trained together: {grouped}; {given}."


def _agreement(facts: CollaborationFacts) -> str:
    distance, bound, left = facts.final.distance, facts.final.bound, len(facts.final.peers)
    if left < 2:
        return "At the end there was only one peer, and so nothing to compare its weights with."
    if distance is None:
        return "How far their weights differed at the end is not recorded."
    return (
        f"At the end the weights of {left:,} peers differed by a relative L2 distance of {_scientific(distance)} "
        f"(bound {_scientific(bound)})."
    )


def _ending(facts: CollaborationFacts) -> str:
    if facts.end != "deadline":
        return ""
    return f"Pretraining was ended by its deadline at step {facts.step:,} of {facts.target_step:,}."


def _table(facts: CollaborationFacts) -> Table:
    rows = [
        (
            name,
            f"{peer.samples:,}",
            f"{per_cent(peer.share)} %",
            f"{peer.steps:,}",
            f"{peer.outcomes.get('averaged', 0):,}",
            f"{peer.outcomes.get('alone', 0):,}",
            f"{peer.outcomes.get('no group', 0) + peer.outcomes.get('failed', 0):,}",
            duration(peer.computing),
            duration(peer.matching),
            duration(peer.reducing),
        )
        for name, peer in zip(_names(facts), facts.peers, strict=True)
    ]
    titles = ["peer", "samples", "share", "global steps", "averaged", "alone", "no group or failed"]
    titles += ["computing", "matching", "reducing"]
    caption = "What each peer gave, how its rounds of averaging ended, and how it spent its time"
    return make_table("peers-table", caption, titles, "l" + "r" * 9, rows, foreign=True)


def _pace(facts: CollaborationFacts) -> str:
    used = facts.samples / max(1, facts.step)
    batch = f"{_rounded(used / facts.target_batch)} of the target batch of {facts.target_batch:,}"
    times = facts.per_step
    return (
        f"On average a global step used {used:,.1f} samples, {batch}, and took {_brief(times.seconds)}: a peer spent "
        f"{_brief(times.computing)} computing, {_brief(times.matching)} matching and {_brief(times.reducing)} "
        f"reducing. Communication took {_rounded(_communication(facts))} of the step.{_lost(facts)}"
    )


def _lost(facts: CollaborationFacts) -> str:
    if not facts.lost:
        return ""
    share = facts.lost / (facts.samples + facts.lost)
    return (
        f" Of all samples that the peers computed, {_rounded(share)} went into no global step, because a peer left or "
        "was late for it."
    )


def _largest_group(facts: CollaborationFacts) -> tuple[int, float]:
    """The size of the largest group that occurred, and the share of the global steps that had it."""
    steps = {size: count for size, count in facts.groups.items() if count > 0}
    if not steps:
        return 1, 0.0
    return max(steps), steps[max(steps)] / sum(steps.values())


def _communication(facts: CollaborationFacts) -> float:
    times = facts.per_step
    return (times.matching + times.reducing) / times.seconds if times.seconds > 0 else 0.0


def _names(facts: CollaborationFacts) -> list[str]:
    """The peers' names; with the beginning of their keys' digests where two have the same."""
    counts = Counter(peer.name for peer in facts.peers)
    return [peer.name if counts[peer.name] == 1 else f"{peer.name} ({peer.peer[:8]})" for peer in facts.peers]


def _rounded(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _brief(seconds: float) -> str:
    return f"{seconds:.2f}\N{NO-BREAK SPACE}s" if seconds < 10 else duration(seconds)


def _scientific(value: float) -> str:
    """ "3.1e-05", "1e-03"."""
    return f"{value:.1e}".replace(".0e", "e") if value else "0"
