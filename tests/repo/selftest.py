# SPDX-License-Identifier: Apache-2.0
"""What --selftest of the checks shares: proof that a check can fail."""
import copy


def prove(findings, good, spoils) -> int:
    """Exit status: 0 if findings(**good) finds something as soon as one of `spoils` ({what: function of a copy}) has been at it."""
    unseen = []
    for what, spoil in spoils.items():
        bad = copy.deepcopy(good)
        spoil(bad)
        if not list(findings(**bad)):
            unseen.append(what)
    print(f"{len(spoils)} cases, not seen: {unseen}")
    return 1 if unseen else 0
