"""The stack of releases does what a plain list of blocks does."""

from __future__ import annotations

from random import Random

from blockmgr.lab.stack import ReleaseStack


def test_distances_are_those_of_a_list_of_blocks() -> None:
    random = Random(4)
    for _ in range(200):
        stack = ReleaseStack(40)
        blocks: list[int] = []  # of each release, what it still owns
        distances: list[int] = []
        for _ in range(random.randint(1, 120)):
            action = random.randrange(4)
            if action == 0 and len(blocks) < 40:
                blocks.append(random.randint(1, 5))
                distances.append(-1)
                assert stack.push(blocks[-1]) == len(blocks) - 1
            elif action == 1 and blocks:
                release = random.randrange(len(blocks))
                gone = random.randint(0, blocks[release])
                blocks[release] -= gone
                stack.remove(release, gone)
            elif action == 2:
                used = random.randint(0, 9)
                stack.record(used)
                for release in range(len(blocks)):
                    needed = used + sum(blocks[release:])
                    distances[release] = max(distances[release], needed)
            for release, distance in enumerate(distances):
                found = stack.distance(release)
                assert found == distance if distance >= 0 else found < 0
