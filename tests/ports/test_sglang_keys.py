"""SGLang's keys in a pool: no part of a wide token id, an adapter or a salt is lost.

``tests/engines/sglang`` runs SGLang itself.
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blockmgr.pool import BlockPool
from blockmgr.ports.sglang.keys import MAX_KEY, namespace_of, prompt_of

TEXT = st.integers(0, 3)
IMAGES = st.sampled_from([1 << 32, (1 << 33) + 1, (1 << 62) + 3, 5 << 40])


@dataclass(frozen=True)
class Key:
    """The attributes of a ``RadixKey`` that the port reads."""

    token_ids: array[int]
    extra_key: str | None = None
    cache_salt: str | None = None

    def raw_token_ids(self) -> array[int]:
        return self.token_ids


def key(tokens: list[int], extra_key: str | None = None, cache_salt: str | None = None) -> Key:
    return Key(array("q", tokens), extra_key, cache_salt)


def test_the_port_imports_neither_sglang_nor_torch() -> None:
    code = (
        "import sys, blockmgr.ports.sglang, blockmgr.ports.sglang.keys;"
        "sys.exit(bool({'sglang', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_text_is_its_whole_pages_and_nothing_besides() -> None:
    prompt = prompt_of(key([1, 2, 3, 4, 5]), 2)
    assert prompt.tokens.tolist() == [1, 2, 3, 4]
    assert prompt.tokens.dtype == np.uint32
    assert (prompt.extras, prompt.namespace) == (None, b"")


def test_the_array_of_tokens_can_grow_afterwards() -> None:
    whole = key([1, 2])
    prompt = prompt_of(whole, 1)
    whole.token_ids.append(3)
    assert prompt.tokens.tolist() == [1, 2]


def test_a_prompt_shorter_than_a_page_has_none() -> None:
    assert prompt_of(key([1 << 40]), 2).tokens.tolist() == []
    assert prompt_of(key([]), 2).extras is None


@given(
    st.integers(1, 4),
    st.lists(TEXT | IMAGES, max_size=12),
    st.lists(TEXT | IMAGES, max_size=12),
)
def test_two_prompts_share_exactly_the_pages_that_are_equal(
    page_size: int, one: list[int], other: list[int]
) -> None:
    pool = BlockPool(16, page_size)
    prompt = prompt_of(key(one), page_size)
    pages = pool.take(len(prompt.tokens) // page_size)
    pool.promote(pages, prompt.tokens, extras=prompt.extras)
    asked = prompt_of(key(other), page_size)
    found = pool.find(asked.tokens, extras=asked.extras)
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert len(found) == same // page_size


@given(st.integers(1, 4), st.lists(TEXT | IMAGES, max_size=12), st.integers(0, 3))
def test_the_rest_of_a_prompt_continues_what_comes_before_it(
    page_size: int, tokens: list[int], split: int
) -> None:
    pool = BlockPool(16, page_size)
    prompt = prompt_of(key(tokens), page_size)
    pages = pool.take(len(prompt.tokens) // page_size)
    split = min(split, len(pages))
    pool.promote(
        pages[:split],
        prompt.tokens[: split * page_size],
        extras={page: e for page, e in (prompt.extras or {}).items() if page < split} or None,
    )
    rest = prompt.after(split, page_size)
    parent = int(pages[split - 1]) if split else -1
    pool.promote(pages[split:], rest.tokens, parent=parent, extras=rest.extras)
    assert pool.find(prompt.tokens, extras=prompt.extras).tolist() == pages.tolist()


def test_a_page_of_more_images_than_a_key_can_name_ends_what_is_cached() -> None:
    images = [(n % 2 + 1) << 40 for n in range(MAX_KEY)]
    tokens = [*range(MAX_KEY), *images, *range(MAX_KEY)]
    prompt = prompt_of(key(tokens), MAX_KEY)
    assert prompt.tokens.tolist() == list(range(MAX_KEY))
    assert prompt.extras is None


def test_one_image_that_fills_a_long_page_fits_its_key() -> None:
    prompt = prompt_of(key([1 << 40] * 4096), 4096)
    assert len(prompt.tokens) == 4096
    assert [len(extra) for extra in (prompt.extras or {}).values()] == [16]


def test_adapters_and_salts_name_different_caches() -> None:
    names = [None, "", "a", "b", "x" * 2000, "x" * 2001]
    spaces = [namespace_of(extra, salt) for extra in names for salt in names if salt != ""]
    assert len(set(spaces)) == len(spaces)
    assert max(map(len, spaces)) <= MAX_KEY
    assert namespace_of(None, None) == namespace_of(None, "") == b""
