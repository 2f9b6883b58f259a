"""The Triton kernels that copy blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from blockmgr.kv.registration import COLUMNS, Column

__all__ = ["copy_few_kernel", "copy_kernel", "move_kernel"]

_COLUMNS = tl.constexpr(COLUMNS)
_ADDRESS = tl.constexpr(int(Column.ADDRESS))
_BLOCK_STRIDE = tl.constexpr(int(Column.BLOCK_STRIDE))
_NUM_ROWS = tl.constexpr(int(Column.NUM_ROWS))
_ROW_STRIDE = tl.constexpr(int(Column.ROW_STRIDE))
_ROW_LENGTH = tl.constexpr(int(Column.ROW_LENGTH))
_TOKEN_LENGTH = tl.constexpr(int(Column.TOKEN_LENGTH))


@triton.jit
def _place(entry, block, UNIT: tl.constexpr, WORD: tl.constexpr, WORDS: tl.constexpr):
    """The start of a block, and its row stride.

    The compiler knows nothing about the alignment of an address from a table. ``multiple_of`` and
    strides in whole units tell it; without either, accesses are at most one word wide.
    """
    base = tl.load(entry + _ADDRESS).to(tl.pointer_type(WORD))
    # 64 bits before any product, because a pool can be larger than 2^31 units.
    start = block.to(tl.int64) * tl.load(entry + _BLOCK_STRIDE)
    return tl.multiple_of(base, UNIT) + start * WORDS, tl.load(entry + _ROW_STRIDE)


@triton.jit
def _pointers(start, row_stride, row, column, WORDS: tl.constexpr):
    """Pointers to units of a block, ``[units, WORDS]``: one unit is one access of a thread."""
    units = row.to(tl.int64) * row_stride + column
    return start + units[:, None] * WORDS + tl.arange(0, WORDS)[None, :]


@triton.jit
def _copy_chunk(  # noqa: PLR0917
    source_table,
    destination_table,
    chunk,
    source,
    destination,
    num_tokens,
    num_sources,
    num_destinations,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copies one chunk of one pair; source -1 stands for zeros.

    Units are numbered across the rows of a block, so that a chunk is full even if rows are short. A
    pair out of range is skipped, because the host cannot check a list written on the device.
    """
    segment = tl.load(chunk)
    first = tl.load(chunk + 1)
    source_entry = source_table + segment * _COLUMNS
    destination_entry = destination_table + segment * _COLUMNS
    num_rows = tl.load(source_entry + _NUM_ROWS).to(tl.int32)
    row_length = tl.load(source_entry + _ROW_LENGTH)
    token_length = tl.load(source_entry + _TOKEN_LENGTH)
    start, row_stride = _place(source_entry, source, UNIT, WORD, WORDS)
    to, to_row_stride = _place(destination_entry, destination, UNIT, WORD, WORDS)

    split = tl.minimum(row_length, num_tokens.to(tl.int64) * token_length)
    length = tl.where(token_length > 0, split, row_length).to(tl.int32)
    valid = (source >= -1) & (source < num_sources) & (num_tokens > 0)
    valid = valid & (destination >= 0) & (destination < num_destinations)
    end = tl.where(valid, num_rows * length, 0)
    unit = first + tl.arange(0, TILE)
    row = unit // tl.maximum(length, 1)
    column = unit - row * length
    words = tl.load(
        _pointers(start, row_stride, row, column, WORDS),
        mask=(unit < tl.where(source >= 0, end, 0))[:, None],
        other=0,
    )
    tl.store(
        _pointers(to, to_row_stride, row, column, WORDS),
        words,
        mask=(unit < end)[:, None],
    )


@triton.jit(
    do_not_specialize=["most_pairs", "num_chunks", "num_sources", "num_destinations"],
    do_not_specialize_on_alignment=["pairs", "count"],
)
def copy_kernel(  # noqa: PLR0917
    source_table,  # int64[num_segments, COLUMNS]
    destination_table,  # int64[num_segments, COLUMNS]
    chunks,  # int32[num_chunks, 2]: segment, first unit
    pairs,  # int32[most_pairs, 3]: source, destination, number of tokens
    count,  # int32[1]: pairs to copy, in memory so that a captured graph reads each list's count
    most_pairs,
    num_chunks,
    num_sources,
    num_destinations,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copies pairs of blocks in any order. A work item is one chunk of one pair."""
    num_items = tl.minimum(tl.load(count), most_pairs) * num_chunks
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        pair = pairs + (item // num_chunks) * 3
        _copy_chunk(
            source_table,
            destination_table,
            chunks + (item % num_chunks) * 2,
            tl.load(pair),
            tl.load(pair + 1),
            tl.load(pair + 2),
            num_sources,
            num_destinations,
            TILE,
            UNIT,
            WORD,
            WORDS,
        )


@triton.jit
def _pick(i, a, b, c, d):
    return tl.where(i < 2, tl.where(i == 0, a, b), tl.where(i == 2, c, d))


@triton.jit(do_not_specialize=list(range(3, 19)))
def copy_few_kernel(  # noqa: PLR0917
    source_table,  # as above, with up to four pairs by value: no transfer and no wait
    destination_table,
    chunks,
    source0,
    destination0,
    num_tokens0,
    source1,
    destination1,
    num_tokens1,
    source2,
    destination2,
    num_tokens2,
    source3,
    destination3,
    num_tokens3,
    num_pairs,
    num_chunks,
    num_sources,
    num_destinations,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copies up to four pairs of blocks in any order."""
    for item in range(tl.program_id(0), num_pairs * num_chunks, tl.num_programs(0)):
        i = item // num_chunks
        _copy_chunk(
            source_table,
            destination_table,
            chunks + (item % num_chunks) * 2,
            _pick(i, source0, source1, source2, source3),
            _pick(i, destination0, destination1, destination2, destination3),
            _pick(i, num_tokens0, num_tokens1, num_tokens2, num_tokens3),
            num_sources,
            num_destinations,
            TILE,
            UNIT,
            WORD,
            WORDS,
        )


@triton.jit(
    do_not_specialize=["num_groups", "num_chunks"],
    do_not_specialize_on_alignment=["groups"],
)
def move_kernel(  # noqa: PLR0917
    table,  # int64[num_segments, COLUMNS]
    chunks,  # int32[num_chunks, 2]: segment, first unit
    groups,  # int32: num_groups + 1 starts, then (source, destination) of each move
    num_groups,
    num_chunks,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Runs groups of whole-block moves, the moves of a group in order; -1 is the register.

    A work item is one chunk of one group: one program does all moves of the group for the same
    bytes of every block, so their order needs no second launch.
    """
    moves = groups + num_groups + 1
    num_items = num_groups.to(tl.int64) * num_chunks
    for item in range(tl.program_id(0).to(tl.int64), num_items, tl.num_programs(0)):
        group = item // num_chunks
        chunk = chunks + (item % num_chunks) * 2
        segment = tl.load(chunk)
        entry = table + segment * _COLUMNS
        length = tl.load(entry + _ROW_LENGTH).to(tl.int32)
        end = tl.load(entry + _NUM_ROWS).to(tl.int32) * length
        unit = tl.load(chunk + 1) + tl.arange(0, TILE)
        row = unit // length
        column = unit - row * length

        register = tl.full([TILE, WORDS], 0, WORD)
        for i in range(tl.load(groups + group), tl.load(groups + group + 1)):
            source = tl.load(moves + i * 2)
            destination = tl.load(moves + i * 2 + 1)
            start, row_stride = _place(entry, source, UNIT, WORD, WORDS)
            to, _ = _place(entry, destination, UNIT, WORD, WORDS)
            loaded = tl.load(
                _pointers(start, row_stride, row, column, WORDS),
                mask=(unit < tl.where(source >= 0, end, 0))[:, None],
                other=0,
            )
            words = tl.where(source >= 0, loaded, register)
            tl.store(
                _pointers(to, row_stride, row, column, WORDS),
                words,
                mask=(unit < tl.where(destination >= 0, end, 0))[:, None],
            )
            register = tl.where(destination >= 0, register, words)
            # The next move may write bytes that this one reads. The compiler does not check global
            # memory for that, and may assign a byte to different threads.
            tl.debug_barrier()
