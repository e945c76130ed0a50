"""Work that comes in episodes between training steps: evaluation, metrics, plots, under whatever name.

Owns: finding the function of the user's that such episodes stand in. Refuses: what it costs (account.py), and the
phases that frames give away by themselves (checkpoints, logging, compilation).

What a job does in every step is seen at random between the other parts of the step. An episode is seen in a row, is
never seen within backward or the optimizer, and lies between stretches of several training steps: that is what tells
a review of the model every hundred steps from preprocessing that happens in each. Stacks that come too rarely show no
rows; then it counts that a function of its own runs the network forward and never back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise

from gpuwatch.diagnose.frames import Phase

MIN_EPISODES = 2
MIN_LENGTH = 2.0
"""Mean samples per episode; shorter ones are no longer than what chance puts in a row."""
LONGER_THAN_CHANCE = 1.5
OWN_FORWARD = 2
"""Samples forward within the function, and as many forward elsewhere: it runs the network, and is not where training
does. In 101 recorded jobs only evaluations do so. A frozen teacher would, in each step: hence the lengths below."""
MIN_LENGTH_FORWARD = 1.5
LONGER_FORWARD = 1.25
MIN_SHARE = 0.05
STEPS_SEEN = 2
"""Places, over the whole window, where a stretch of training goes back from a later phase of the step to an earlier
one: more than one step lies between two episodes. One step that takes seconds goes forward only."""

Function = tuple[str, str]
"""(file, function) of a user's frame."""


def function_of_episodes(
    functions: Sequence[frozenset[Function]], phases: Sequence[Phase], *, open_: Sequence[bool]
) -> Function | None:
    """The outermost function whose samples come in episodes, or None.

    ``functions``: of the user's frames, per sample of the driving thread; ``phases``: its phase of a training step;
    ``open_``: whether nothing else has explained the sample yet.
    """
    marks = _beside_training(functions, phases)
    found = [(sum(seen), f) for f, seen in marks.items() if _is_episodic(seen, phases, open_)]
    return max(found)[1] if found else None


def runs_forward_only(functions: Sequence[frozenset[Function]], phases: Sequence[Phase]) -> bool:
    """Whether a function of the user's runs the network and never trains it, besides one that trains: an evaluation,
    or a part of each step."""
    return any(_own_forward(seen, phases) for seen in _beside_training(functions, phases).values())


def _beside_training(functions: Sequence[frozenset[Function]], phases: Sequence[Phase]) -> dict[Function, list[bool]]:
    """Functions that are never seen within backward or the optimizer, and whether each sample shows them; none where
    nothing trains."""
    training = {f for of, p in zip(functions, phases, strict=True) if p in (Phase.BACKWARD, Phase.UPDATE) for f in of}
    others = {f for of in functions for f in of} - training if training else set()
    return {function: [function in of for of in functions] for function in others}


def _own_forward(seen: Sequence[bool], phases: Sequence[Phase]) -> bool:
    inside = [s for s, phase in zip(seen, phases, strict=True) if phase is Phase.FORWARD]
    return sum(inside) >= OWN_FORWARD and len(inside) - sum(inside) >= OWN_FORWARD


def _is_episodic(seen: Sequence[bool], phases: Sequence[Phase], open_: Sequence[bool]) -> bool:
    count = sum(seen)
    share = count / len(seen)
    if share < MIN_SHARE or share >= 1.0 or 2 * sum(s and o for s, o in zip(seen, open_, strict=True)) < count:
        return False
    episodes = sum(inside for inside, _ in groupby(seen))
    length = count / episodes
    by_chance = 1.0 / (1.0 - share)
    forward = _own_forward(seen, phases)
    return (
        episodes >= MIN_EPISODES
        and length >= (MIN_LENGTH_FORWARD if forward else MIN_LENGTH)
        and length >= (LONGER_FORWARD if forward else LONGER_THAN_CHANCE) * by_chance
        and _steps_between(seen, phases) >= STEPS_SEEN
    )


def _steps_between(seen: Sequence[bool], phases: Sequence[Phase]) -> int:
    stretches: dict[int, list[Phase]] = defaultdict(list)
    number = 0
    for inside, phase in zip(seen, phases, strict=True):
        if inside:
            number += 1
        elif phase is not Phase.NONE:
            stretches[number].append(phase)
    return sum(later < earlier for stretch in stretches.values() for earlier, later in pairwise(stretch))
