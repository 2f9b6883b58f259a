"""The words of the 256 tokens of the model in ``blockmgr generate --demo``."""

from __future__ import annotations

from typing import Final

__all__ = ["WORDS"]

_TEXT: Final = """\
the manager of and block it is blocks with in tokens to that its one prompt cached an from first
sequence no for engine or on copy are parent not hit yes has only last admit when token same
match as what two other if extras use rate prompts commit child by them table idle at source run
next free every step pool order fork does takes stats shared prefix policies own never model
full eviction each can you states second need may index do digest write why this tail so share
sequences plan owned out namespace look find copies cache all after writes which was then shares
root reuse policy needs moves list key images identity finds count computed both because without
up trace they their tables retention replay range ports place partial page nothing memory into
image how holds handle freed forks design compares change before admission your until turn three
than tests stays slots sizes shows sharing set runs request nodes node models keys keeps
internal have hash forward evicts evicted equal ends digests children call beam be any another
yet would within windows where used too there start sliding size search says room report plot
part over names more misses missed long handed glossary generate fresh computes compute chat
calls becomes append apart always value times these tensors tenants tenant take such soon slot
see security section scheduler salt result rates queues questions planned pins pin owns others
orphans new most measure make looks live library leaves leaf large kept hold four
"""
WORDS: Final = tuple(_TEXT.split())
