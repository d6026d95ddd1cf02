"""Who may come into a group: not those whom the gate turns away, and nobody who brings what would break the round.

Traps of hivemind 1.1.12 that are closed here: whoever knows a group's key may join it, and what it says of itself is
read only once the round runs, where words that cannot be read end the round for all.
"""

from __future__ import annotations

import math
from typing import Any

from hivemind.averaging.matchmaking import Matchmaking, MatchmakingException
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MSGPackSerializer

from tasks.pretraining.collaborative.gate import Gate

LARGEST_WORD = 256
"""Bytes that a peer says of itself when it joins a group: bandwidth, mode, and nothing else."""

MOST_BANDWIDTH = 1e9
"""As the setting ``bandwidth_mbps``."""

MODES = (0, 1, 2)
"""hivemind's: a peer that averages, one that nobody can call, and one that only helps."""

_WORDS = tuple(map(MSGPackSerializer.dumps, (None, False, True)))


def problem_with_word(word: bytes) -> str | None:
    """Why what a peer says of itself cannot be used; None if it can."""
    try:
        found = MSGPackSerializer.loads(word) if len(word) <= LARGEST_WORD else None
    except Exception:
        found = None
    if not isinstance(found, list) or len(found) != 3:
        return "words about itself that cannot be read"
    bandwidth, mode, more = found
    if mode not in MODES or isinstance(mode, bool) or more not in _WORDS:
        return "a mode that no peer has"
    number = isinstance(bandwidth, int | float) and not isinstance(bandwidth, bool)
    if bandwidth is not None and not (number and math.isfinite(bandwidth) and 0 <= bandwidth <= MOST_BANDWIDTH):
        return f"a bandwidth of {str(bandwidth)[:30]}"
    return None


def watch_the_door(matchmaking: Matchmaking, gate: Gate) -> None:
    """Have an averager's matchmaking ask the gate whom to lead, to follow and to form a group with."""
    check, find = matchmaking._check_reasons_to_reject, matchmaking.group_key_manager.get_averagers
    ask, follow = matchmaking._request_join_group, matchmaking.follower_assemble_group

    def check_follower(request: averaging_pb2.JoinRequest, context: Any) -> averaging_pb2.MessageFromLeader | None:
        reason = check(request, context)
        problem = None if reason is not None else problem_with_word(request.gather)
        if problem is None:
            return reason
        gate.report(context.remote_id.to_base58(), problem)
        return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)

    async def find_admitted(group_key: str, only_active: bool) -> list[tuple[PeerID, float]]:
        return [one for one in await find(group_key, only_active) if gate.admits(one[0].to_base58())]

    async def ask_admitted(leader: PeerID) -> Any:
        return await ask(leader) if gate.admits(leader.to_base58()) else None

    async def follow_checked(leader: PeerID, message: averaging_pb2.MessageFromLeader) -> Any:
        words, members = message.gathered, list(message.ordered_peer_ids)
        bad = [problem for word in words if (problem := problem_with_word(word)) is not None]
        if bad or len(words) != len(members) or len(set(members)) != len(members):
            gate.report(leader.to_base58(), "a group that cannot average")
            raise MatchmakingException("the leader's group cannot average")
        return await follow(leader, message)

    matchmaking._check_reasons_to_reject = check_follower
    matchmaking.group_key_manager.get_averagers = find_admitted
    matchmaking._request_join_group = ask_admitted
    matchmaking.follower_assemble_group = follow_checked
