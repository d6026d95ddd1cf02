"""What a member of a swarm does for it. Light to import: the command line names the roles too."""

from __future__ import annotations

from typing import Literal, get_args

Role = Literal["peer", "client", "auxiliary", "keeper"]
"""
=============  ========================  ==========================  =================================
role           computes gradients        averages others' gradients  has a state that others can take
=============  ========================  ==========================  =================================
``peer``       yes                       yes                         yes
``client``     yes                       no: nobody can reach it     no
``auxiliary``  no                        yes                         no: it has none
``keeper``     no                        yes                         yes, that of the newest step
=============  ========================  ==========================  =================================
"""

ROLES: tuple[Role, ...] = get_args(Role)

TRAINING: frozenset[Role] = frozenset({"peer", "client"})
"""Roles that compute gradients."""

HOLDING: frozenset[Role] = frozenset({"peer", "keeper"})
"""Roles with a state that others can download."""
