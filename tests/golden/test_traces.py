"""Tiny traces with exact counts, worked by hand in the comments."""

from __future__ import annotations

from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve, step


def test_shared_system_prompt(make_manager: MakeManager) -> None:
    """Four requests of one system prompt, four tokens a block, pool large enough.

    =======  ======================  ======  ====  =====================================
    request  tokens                  query   hit   computed blocks
    =======  ======================  ======  ====  =====================================
    1        8 system + 3            11      0     2 full (system), tail not kept
    2        8 system + 3 others     11      8     system blocks found
    3        8 system                8       4     second block holds the last token
    4        8 system + 8            16      8     2 more full blocks
    =======  ======================  ======  ====  =====================================
    """
    manager = make_manager(32, 4)
    system = [1, 2, 3, 4, 5, 6, 7, 8]
    for rest in ([9, 9, 9], [8, 8, 8], [], [7] * 8):
        cache(manager, system + rest)
    stats = manager.stats()
    assert (stats.query_tokens, stats.hit_tokens) == (46, 20)
    # Request 3 computes the second system block again and finds its twin at commit.
    assert (stats.promoted_blocks, stats.deduplicated_blocks) == (4, 1)
    assert (stats.cached_blocks, stats.evicted_blocks) == (4, 0)


def test_two_prompts_that_do_not_fit_together(make_manager: MakeManager) -> None:
    """Three blocks of two tokens; prompts A and B of three blocks each, A B A B.

    Each prompt evicts all blocks of the one before: no hits, and from the second prompt on three
    evictions each.
    """
    manager = make_manager(3, 2)
    for token in (1, 2, 1, 2):
        cache(manager, [token] * 6)
    stats = manager.stats()
    assert (stats.query_tokens, stats.hit_tokens) == (24, 0)
    assert (stats.promoted_blocks, stats.evicted_blocks) == (12, 9)


def test_eviction_from_the_tail_keeps_a_shared_head(make_manager: MakeManager) -> None:
    """Four blocks of one token.

    A = 1 2 3     3 blocks, all cached; released 3, 2, 1      idle: 3 2 1, one free
    B = 1 9 9     hit 1 (one token); new: free, then evict 3  idle: 2
                  released: last 9, first 9, 1                idle: 2 99 9 1
    A again       hits 1, 2 (one before the last token)       idle: 99 9
                  takes a block for 3: evicts 99              released: 3 2 1
    """
    manager = make_manager(4, 1)
    hits = []
    for prompt in ([1, 2, 3], [1, 9, 9], [1, 2, 3]):
        seq = serve(manager, prompt)
        hits.append(seq.num_cached_tokens)
        seq.free()
    assert hits == [0, 1, 2]
    stats = manager.stats()
    assert stats.evicted_blocks == 2
    assert stats.promoted_blocks == 3 + 2 + 1
    assert manager.match([1, 9, 9]).num_cached_tokens == 2


def test_a_conversation_with_and_without_token_reuse(make_manager: MakeManager) -> None:
    """Three turns, four tokens a block; each prompt is the history plus three new tokens.

    =====  ========  ==================  ==============================
    turn   prompt    hit, blocks only    hit, with tails
    =====  ========  ==================  ==============================
    1      3         0                   0
    2      6         0                   3 (the tail of turn 1)
    3      9         4                   6 (one block and its tail)
    =====  ========  ==================  ==============================
    """
    for least, expected in ((0, 4), (1, 9)):
        manager = make_manager(8, 4, min_partial_tokens=least)
        for turn in (1, 2, 3):
            cache(manager, list(range(3 * turn)))
        stats = manager.stats()
        assert (stats.query_tokens, stats.hit_tokens) == (18, expected)
        assert stats.planned_copies == 0  # every tail was idle and was taken over
        assert stats.cached_tails == (3 if least else 0)


def test_beam_search_of_two_beams_over_four_steps(make_manager: MakeManager) -> None:
    """Block size 4, prompt of 3 tokens, two beams; copies counted by hand.

    step 1  both decode: the tail is shared, one copies 3 tokens, the other writes in place
    step 2  beam 1 becomes a fork of beam 0 (4 tokens: a full block); both open new blocks
    step 3  beam 0 stays, beam 1 a fork of beam 0: tail of 1 token shared, one copy of 1
    step 4  nothing is reparented: both write in place
    """
    manager = make_manager(16, 4)
    first = serve(manager, [1, 1, 1])
    [second] = first.fork()
    beams = [first.handle, second.handle]
    copied = []
    for parents, tokens in (([0, 1], [2, 3]), ([0, 0], [4, 5]), ([0, 0], [6, 7]), ([0, 1], [8, 9])):
        manager.reparent(beams, parents)
        manager.decode(beams, tokens)
        copied.append([copy.num_tokens for copy in step(manager)])
    assert copied == [[3], [], [1], []]
    assert first.tokens.tolist() == [1, 1, 1, 2, 4, 6, 8]
    assert second.tokens.tolist() == [1, 1, 1, 2, 4, 7, 9]
    assert ids(first)[0] == ids(second)[0]
    assert manager.stats().used_blocks == 3


def test_preemption_and_resumption_under_pressure(make_manager: MakeManager) -> None:
    """Four blocks of two tokens. A holds three and is preempted for B, which takes two.

    A's full blocks a0 a1 are idle after preemption (a2 held one token, not kept). B takes the two
    free blocks. A resumes: hits a0 a1, needs a third block and there is none. B ends, A resumes.
    """
    manager = make_manager(4, 2)
    a = serve(manager, [1] * 5)
    a.preempt()
    b = serve(manager, [2] * 3)
    assert manager.num_available == 2
    assert manager.match([1] * 5).num_cached_tokens == 4
    b.append([2, 2])  # evicts a1
    assert manager.match([1] * 5).num_cached_tokens == 2
    b.free()
    a.resume()
    stats = manager.stats()
    assert (stats.resumed_query_tokens, stats.resumed_hit_tokens) == (5, 2)
    assert (stats.query_tokens, stats.hit_tokens, stats.evicted_blocks) == (8, 0, 1)
