"""The KV hints that requests carry (``kv_hints``, in SGLang 0.5.23), carried out at their ends.

``Hints`` works on a ``BlockManager``. SGLang's pages are in a ``BlockPool``, which knows neither
sequences nor sessions, so ``Pages`` shows it as a manager whose only sequence is the request that
ends. It names pages by numbers of its own: no digest of a page leaves the process, so a router
cannot know one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from blockmgr.blocks import Priority
from blockmgr.errors import UnknownSequenceError
from blockmgr.hints import Hints
from blockmgr.ports.hinted import CarriedHints
from blockmgr.ports.sglang.keys import namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.pool import BlockPool
    from blockmgr.stats import QuotaUsage

__all__ = ["RequestHints"]

MOST_SESSIONS: Final = 2**16
LONGEST_SESSION: Final = 256
"""Characters: a hint cannot name a longer one."""

HALF: Final = 4
"""Bytes of a name for the generation, and for the number, of a page."""

logger = logging.getLogger("sglang.blockmgr")


class _PageName(bytes):
    """The name of a page with its content. A digest in a message has another type."""

    @classmethod
    def of(cls, page: int, generation: int) -> _PageName:
        return cls(generation.to_bytes(HALF, "big") + page.to_bytes(HALF, "big"))

    @property
    def page(self) -> int:
        return int.from_bytes(self[HALF:], "big")

    @property
    def generation(self) -> int:
        return int.from_bytes(self[:HALF], "big")


class Pages:
    """A pool as ``Hints`` sees a manager. The sequence is the path of the request that ends."""

    def __init__(self, pool: BlockPool, num_rows: int) -> None:
        self._pool = pool
        self.config = SimpleNamespace(retention=True, block_size=pool.block_size, max_seqs=num_rows)
        self._handle, self._path = 0, list[_PageName]()
        self._sessions: OrderedDict[tuple[bytes, bytes], list[_PageName]] = OrderedDict()
        self._tips: Counter[_PageName] = Counter()

    def begin(self, pages: Iterable[int]) -> int:
        """The handle of the request that ends, whose whole pages are these."""
        self._handle += 1
        self._path = [_PageName.of(page, self._pool.generation(page)) for page in pages]
        return self._handle

    def remember(self, session: bytes, namespace: bytes) -> None:
        """The session of this request; its pages are those of its last request."""
        self._forget(session, namespace)
        self._sessions[namespace, session] = self._path
        self._tips.update(self._path[-1:])
        if len(self._sessions) > MOST_SESSIONS:
            oldest_namespace, oldest = next(iter(self._sessions))
            self._forget(oldest, oldest_namespace)

    # What Hints asks of a manager.

    @property
    def time(self) -> float:
        return self._pool.time

    def quota_usage(self, namespace: bytes) -> QuotaUsage:
        return self._pool.quota_usage(namespace)

    def handles(self) -> list[int]:
        return [self._handle]

    def sequence(self, handle: int) -> SimpleNamespace:
        if handle != self._handle:
            raise UnknownSequenceError(handle)
        num_tokens = len(self._path) * self._pool.block_size
        return SimpleNamespace(num_tokens=num_tokens, num_slots=num_tokens)

    def cached_digests(self, handle: int) -> list[_PageName]:
        self.sequence(handle)
        return self._path

    def session_digests(self, session: bytes, *, namespace: bytes) -> list[_PageName] | None:
        return self._sessions.get((namespace, session))

    def retain(
        self, handle: int, start: int, stop: int, *, priority: Priority | None, ttl: float | None
    ) -> int:
        self.sequence(handle)
        size = self._pool.block_size
        pages = self._cached(self._path[start // size : -(-stop // size)])
        self._pool.retain(pages, priority=priority, ttl=ttl)
        return len(pages)

    def retain_digests(
        self, names: list[bytes], *, priority: Priority | None, ttl: float | None,
        namespace: bytes, max_blocks: int | None, leading: bool,
    ) -> int:  # fmt: skip
        del namespace, leading  # a name of ours is of a page of the request's own namespace
        pages = self._cached(names)
        self._pool.retain(pages[:max_blocks], priority=priority, ttl=ttl)
        return len(pages)

    def pin_digests(self, names: list[bytes], **bounds: object) -> None:
        raise ValueError("kv.pin is not supported for SGLang's pages; kv.retain is")

    def signal(self, session: bytes, signal: str, *, namespace: bytes) -> int | None:
        """``"done"`` alone: what only the session has goes first."""
        del signal
        path = self._sessions.get((namespace, session))
        if path is None:
            return None
        own = self._alone(path)
        self._pool.retain(own, priority=Priority.LOW)
        return len(own)

    def end_session(self, session: bytes, *, namespace: bytes) -> int | None:
        count = self.signal(session, "done", namespace=namespace)
        self._forget(session, namespace)
        return count

    def _forget(self, session: bytes, namespace: bytes) -> None:
        path = self._sessions.pop((namespace, session), None)
        for tip in (path or ())[-1:]:
            self._tips[tip] -= 1
            if not self._tips[tip]:
                del self._tips[tip]

    def _cached(self, names: Iterable[bytes]) -> list[int]:
        """The pages of these names that still have their content."""
        pages = []
        for name in names:
            if not isinstance(name, _PageName):
                raise ValueError("block_hashes name nothing here: SGLang's pages have no digests")
            if self._pool.generation(name.page) == name.generation:
                pages.append(name.page)
        return pages

    def _alone(self, path: list[_PageName]) -> list[int]:
        """The pages at the end of a path that no request, other session or other path has."""
        own: list[int] = []
        for place, name in enumerate(reversed(path)):
            is_tip = self._tips[name] > (1 if place == 0 else 0)
            if is_tip or self._pool.generation(name.page) != name.generation:
                break
            continued = self._pool.children(name.page)
            if not self._pool.is_idle(name.page) or not set(continued.tolist()) <= set(own[-1:]):
                break
            own.append(name.page)
        return own[::-1]


class RequestHints:
    """Carries out the hints of requests of one cache.

    Args:
        pool: With ``retention=True``.
        num_rows: Most requests at a time.
    """

    def __init__(self, pool: BlockPool, num_rows: int) -> None:
        self._pool = pool
        self._pages = Pages(pool, num_rows)
        self._carried = CarriedHints(Hints(self._pages), logger)  # type: ignore[arg-type]

    @property
    def hints(self) -> Hints:
        """For its counts."""
        return self._carried.hints

    def end(self, req: Any, pages: Iterable[int]) -> None:
        """Carries out the envelope of a request that has ended; these are its whole pages."""
        envelope, session = req.kv_hints, req.session_id
        named = isinstance(session, str) and 0 < len(session) <= LONGEST_SESSION
        if envelope is None and not named:
            return
        namespace = namespace_of(req.extra_key, req.cache_salt)
        handle = self._pages.begin(pages)
        if named:
            self._pages.remember(session.encode(errors="surrogatepass"), namespace)
        self.set_time()
        self._carried.carry_out(envelope, namespace, handle)
        self.hints.finish(handle)

    def set_time(self) -> None:
        """Ends what has lasted long enough."""
        self._pool.set_time(time.monotonic())
        self.hints.expire()
