"""The key-value cache in blocks, with its prefix cache, as in vLLM's v1/core/block_pool.py."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence


def prefix_keys(prompt: Sequence[int], block_size: int, salt: str | None) -> tuple[int, ...]:
    """One key for each full block of a prompt. A key represents all tokens up to the end of its
    block, and for the salt.

    The last token is never taken from the cache: something must be computed to predict the next
    token (v1/core/kv_cache_manager.py, get_computed_blocks), so a block that ends with it gets
    no key.
    """
    key = 0 if salt is None else 1 + zlib.crc32(salt.encode())
    keys: list[int] = []
    for end in range(block_size, len(prompt), block_size):
        key = hash((key, tuple(prompt[end - block_size : end])))
        keys.append(key)
    return tuple(keys)


class BlockPool:
    """Counts blocks: those in use, by one request or shared by several, and free ones that
    still hold a prefix.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._holders: dict[int, int] = {}  # key -> how many requests hold the block
        # free blocks that hold a prefix, least recently used first
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def usage(self) -> float:
        """Share in use, 0..1. A free block that still holds a prefix is free."""
        return self.used / self.total

    def hits(self, keys: Sequence[int]) -> int:
        """How many of these blocks, from the first on, are in the cache."""
        for count, key in enumerate(keys):
            if key not in self._holders and key not in self._kept:
                return count
        return len(keys)

    def hold(self, keys: Sequence[int]) -> bool:
        """Takes cached blocks into use. Returns False, and takes nothing, where blocks are
        short.
        """
        sleeping = sum(key in self._kept for key in keys)
        if self.used + sleeping > self.total:
            return False
        for key in keys:
            if key in self._kept:
                del self._kept[key]
                self.used += 1
            self._holders[key] = self._holders.get(key, 0) + 1
        return True

    def take(self, count: int) -> bool:
        """Takes empty blocks, evicting the oldest prefixes. Returns False, and takes
        nothing, where blocks are short.
        """
        if self.used + count > self.total:
            return False
        self.forget_for(count)
        self.used += count
        return True

    def forget_for(self, count: int) -> None:
        """Evicts the oldest prefixes until `count` blocks are empty."""
        while self._kept and self.used + count + len(self._kept) > self.total:
            self._kept.popitem(last=False)

    def publish(self, key: int) -> bool:
        """Makes a private block available to others under this prefix. Returns False where
        another block holds it already.
        """
        if key in self._holders or key in self._kept:
            return False
        self._holders[key] = 1
        return True

    def give_back(self, keys: Sequence[int], private: int) -> None:
        """Frees a request's shared and private blocks in reverse order, so that its last
        blocks are evicted first.
        """
        self.used -= private
        for key in reversed(keys):
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.used -= 1
                self._kept[key] = None

    def forget(self) -> None:
        """Empties the prefix cache; blocks in use stay in use but are no longer found."""
        self._kept.clear()
