"""A wrong command is one line that says what would be right, whichever command it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Run

# Words after ``blockmgr``, and a part of the line on stderr.
WRONG = (
    ("replay --capacity 10%,none", "got 'none'"),
    ("replay --capacity 0", "got '0'"),
    (f"replay --capacity {'9' * 15}", "num_blocks"),
    ("replay --block-size 0", "block_size must be in [1, 65535], got 0"),
    ("replay --block-size x", "'x' is not a valid integer"),
    ("replay --seed -1", "-1 is not in the range"),
    ("replay --max-seqs 0", "max_seqs must be in [1, 2147483647]"),
    ("replay --min-partial-tokens 17", "min_partial_tokens must be in [0, 16]"),
    ("replay --workload nothing", "'nothing' is not one of"),
    ("replay --trace no-such-file", "no-such-file"),
    ("replay --min-hit-rate 130%", "got '130%'"),
    ("replay --plot curve.pdf", "plot must end in .png or .svg, got 'curve.pdf'"),
    ("replay --plot nowhere/curve.png", "plot must go into a folder that exists, got 'nowhere'"),
    ("replay --no-such-option", "--no-such-option"),
    ("replay surplus", "surplus"),
    ("replay --eviction acr", "got 'acr'; did you mean 'arc'?"),
    ("show few-shot --eviction lfud", "got 'lfud'; did you mean 'lfuda'?"),
    ("explain few-shot --eviction lfud", "got 'lfud'; did you mean 'lfuda'?"),
    ("sweep chta", "must be a file, a folder or one of"),
    ("sweep chta", "did you mean 'chat'?"),
    ("sweep ''", "SOURCE must be a file, a folder or one of"),
    ("sweep chat --workload agent", "SOURCE excludes --trace and --workload"),
    ("sweep --trace . --workload agent", "--trace and --workload exclude each other"),
    ("sweep chat --policies lru,lfud", "got 'lfud'; did you mean 'lfuda'?"),
    ("sweep chat --policies lru,lru", "policies must differ, got 'lru' twice"),
    ("sweep chat --capacities 3", "capacity must be at least 219 blocks (0.97%)"),
    ("sweep chat --block-sizes 16,no", "whole numbers above 0, got '16,no'"),
    ("sweep chat --jobs 0", "0 is not in the range"),
    ("plan chat", "Missing option '--hit-rate'"),
    ("plan chat --hit-rate 99%", "hit rate must be at most 92.51%"),
    ("plan chat --hit-rate 101%", "got '101%'"),
    ("plan chat --hit-rate 9% --layers 3", "needs all of --layers"),
    ("plan chat --hit-rate 9% --dtype bf16", "did you mean 'bfloat16'?"),
    ("plan chat --hit-rate 9% --model . --layers 3", "--model excludes --layers"),
    ("workload chta", "got 'chta'; did you mean 'chat'?"),
    ("workload chat --format cvs", "'cvs' is not one of"),
    ("report chat", "Missing option '--output'"),
    ("report chat -o page.pdf", "output must end in .html"),
    ("report chat -o no/page.html", "folder that exists, got 'no'"),
    ("report chat -o a.html --capacity 1,2", "capacity must be one pool"),
    ("report chat -o a.html --replicas 0", "replicas must be whole numbers"),
    ("report chat -o a.html --routers sesion", "did you mean 'session'"),
    ("report chat -o a.html --warmup half", "share must be in [0, 1]"),
    ("show --step 0", "0 is not in the range"),
    ("show --step 99999", "step must be at most"),
    ("show --at 130%", "got '130%'"),
    ("show --at 10% --step 3", "--step and --at exclude each other"),
    ("show --capacity 10%,20%", "capacity must be one pool size, got '10%,20%'"),
    ("show --capacity 3", "no request fits a pool of 3 blocks: there is no step to show"),
    ("show --output map.png", "output must end in .svg, got 'map.png'"),
    ("show --output no/map.svg", "output must go into a folder that exists, got 'no'"),
    ("explain few-shot --request 0", "0 is not in the range"),
    ("explain few-shot --request 100000", "request must be in [1, "),
    ("explain few-shot --capacity none", "capacity must be a percentage"),
    ("explain few-shot --capacity 1 --request 1", "more than the pool of 1 holds"),
    ("fleet chat --routers longest-prefx", "did you mean 'longest-prefix'?"),
    ("fleet chat --replicas 1,zero", "replicas must be whole numbers above 0"),
    ("fleet chat --replicas 0", "replicas must be whole numbers above 0"),
    ("fleet chat --replicas 2+0", "or two of them such as 6+2, got '2+0'"),
    ("fleet chat --replicas 1+1+1", "or two of them such as 6+2, got '1+1+1'"),
    ("fleet chat --decode-router nearest", "'nearest' is not one of"),
    ("fleet chat --load-weight -1", "-1"),
    ("fleet chat --event-loss 0,120%", "share must be in [0, 1] or [0%, 100%], got '120%'"),
    ("fleet chat --event-delay-ms soon", "delays must be whole numbers, at least 0, got 'soon'"),
    ("fleet chat --event-repair replays", "did you mean 'replay'?"),
    ("replay --capacity 10%,10%", "capacities must differ, got '10%' twice"),
    ("replay --capacity 10%,5%,10.0%", "capacities must differ, got '10.0%' twice"),
    ("sweep --capacities 64,064", "capacities must differ, got '064' twice"),
    ("sweep --block-sizes 16,32,16", "block sizes must differ, got 16 twice"),
    ("plan --hit-rate 30%,0.3", "hit rates must differ, got 30% twice"),
    ("plan --hit-rate 30% --hit-rate 30%", "hit rates must differ, got 30%"),
    ("report -o x.html --capacities 5%,5%", "capacities must differ, got '5%'"),
    ("replay --model gema-3", "did you mean 'gemma-3'?"),
    ("replay --model no/such/folder", "must be a config.json, its folder, or one of"),
    ("replay --model gemma-3 --dtype float16", "dtype must not be given"),
    ("replay --model gemma-3 --hints truth", "hints must be 'none' or 'session'"),
    (
        "sweep --model qwen3-next --block-sizes 544,16",
        "block_size must be at least 544 for a block of qwen3-next to hold a state, got 16",
    ),
    ("sweep chat --min-partial-tokens 4 --jobs 1", "min_partial_tokens must be 0 to count whole"),
    ("plan chat --hit-rate 9% --min-partial-tokens 4", "must be 0 to count whole"),
    ("plan --hit-rate 9% --model gemma-3 --layers 3", "--model excludes --layers"),
    ("plan tree-of-thought --hit-rate 99% --model gemma-3", "must be at most 97.34%"),
    ("sweep few-shot --min-service-ms 99999999999999999999", "must be in [0, 2147483647]"),
    ("fleet few-shot --gpu-price nan", "number must be in [0, 2147483647], got nan"),
    ("fleet few-shot --prefill-ms-per-token nan", "number must be in [0, 2147483647], got nan"),
    ("fleet few-shot --prefill-overhead-ms inf", "number must be in [0, 2147483647], got inf"),
    # Options that would have no effect.
    ("sweep few-shot --tokens-per-id 3", "--tokens-per-id needs a trace file"),
    ("show --tokenizer .", "--tokenizer needs a trace file"),
    ("explain few-shot --sort", "--sort needs a trace file"),
    ("sweep few-shot --dtype float16", "--dtype needs --model"),
    ("replay --model llama-3-8b --forward-tokens 9", "needs --model with several groups"),
    ("replay --tiers host=9 --prefetch", "--prefetch needs two tiers or more"),
    ("fleet few-shot --gpus 4", "--gpus needs --gpu-price"),
    ("fleet few-shot --decode-router random", "--decode-router needs --replicas that are split"),
    ("fleet few-shot --send-ms-per-token 3", "--send-ms-per-token needs --replicas that are split"),
    ("fleet few-shot --event-delay-ms 9", "--event-delay-ms needs --routers events"),
    ("fleet few-shot --event-loss 9%", "--event-loss needs --routers events"),
    ("fleet few-shot --routers events --event-repair none", "needs --event-loss above 0"),
    ("fleet few-shot --routers session --load-weight 3", "--load-weight needs --routers prefix"),
    ("report few-shot -o a.html --routers random", "--routers needs --replicas"),
    ("workload few-shot --format own", "--format needs --export"),
)


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_wrong_command_is_one_line_with_what_would_be_right(
    run: Run, words: str, message: str
) -> None:
    result = run(*shlex.split(words))

    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"(try 'blockmgr {words.split(maxsplit=1)[0]} --help')\n")
    assert not Path("a.html").exists()
