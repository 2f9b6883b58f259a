"""``--model`` of several commands: groups of layers, and the output."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from blockmgr.lab.choices import parse_gib
from blockmgr.lab.grouped import ByGroup
from blockmgr.lab.models import NAMED, Model, named
from blockmgr.lab.planning import kv_bytes_per_token
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from tests.cli.conftest import Run

PLANS = Path(__file__).parents[1] / "engines" / "families" / "plans.json"
REPLAY = ("replay", "tree-of-thought", "--capacity", "30%", "--min-partial-tokens", 16)
SWEEP = ("sweep", "tree-of-thought", "--capacity", "40%", "--policies", "lru", "--jobs", 1)
PLAN = ("plan", "tree-of-thought", "--hit-rate", "10%")
FLEET = ("fleet", "tree-of-thought", "--capacity", "60%", "--replicas", 1, "--routers", "session")

QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "dtype": "bfloat16",
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


@pytest.fixture
def config_folder(tmp_path: Path) -> Path:
    """A folder with the config of a small model like Qwen3-Next."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_NEXT), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_hidden_layers", True, "num_hidden_layers must be an int, got True"),
        ("num_hidden_layers", 10**23, "num_hidden_layers must be in [1, 65536]"),
        ("head_dim", 2.5, "head_dim must be an int, got 2.5"),
        ("layer_types", [1, 2], "layer_types of the config must be a list of names"),
    ],
)
def test_a_config_with_a_wrong_field_is_refused_in_one_line(
    config_folder: Path, run: Run, field: str, value: object, message: str
) -> None:
    (config_folder / "config.json").write_text(json.dumps({**QWEN3_NEXT, field: value}))
    result = run(*REPLAY, "--model", config_folder)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


@pytest.mark.parametrize("stop", [None, 0])
def test_replay_counts_by_group_what_a_replay_in_the_lab_counts(run: Run, stop: int | None) -> None:
    option = () if stop is None else ("--prompt-end-stop", stop)
    document = json.loads(run(*REPLAY, "--model", "qwen3-next", *option, "--json").stdout)

    groups = named("qwen3-next").groups
    config = ReplayConfig(
        block_size=544, min_partial_tokens=16, groups=groups, prompt_end_stop=stop
    )
    trace = generate("tree-of-thought", 0)
    [entry] = document["results"]
    result = replay(trace, entry["num_blocks"], config)
    assert isinstance(result.by_group, ByGroup)
    assert entry["hit_tokens"] == result.hit_tokens
    assert document["attainable"]["hit_tokens"] == attainable(trace, config).hit_tokens
    assert document["full_attention"]["hit_rate"] >= document["attainable"]["hit_rate"]
    assert document["config"]["groups"] == document["model"]["groups"] == list(map(repr, groups))
    assert document["config"]["block_size"] == 544
    size = document["model"]["bytes_per_block"]
    assert size == 12 * 2 * 2 * 256 * 2 * 544
    for found, counted in zip(entry["by_group"]["groups"], result.by_group.groups, strict=True):
        assert found["group"] == counted.group
        assert found["refused_tokens"] == counted.refused_tokens
        assert found["cached_bytes"] == round(counted.cached_blocks * size)


def test_replay_prints_a_second_table_with_a_line_for_each_kind_of_group(run: Run) -> None:
    lines = run(*REPLAY, "--model", "gemma-3").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("gemma-3: 1,048,576 bytes"))
    rows = [line.split() for line in lines[start + 2 :] if line.strip()]
    assert [row[:4] for row in rows] == [
        ["30%", "1", "x", "FullAttention()"],
        ["30%", "5", "x", "SlidingWindow(width=1024)"],
    ]


@pytest.mark.parametrize(
    ("command", "model"),
    [(REPLAY, "qwen3-next"), (SWEEP, "qwen3-next"), (PLAN, "deepseek-v4"), (FLEET, "qwen3-next")],
    ids=lambda value: str(value[0]),
)
def test_the_command_in_the_json_repeats_it(run: Run, command: tuple[Any, ...], model: str) -> None:
    one = run(*command, "--model", model, "--json")
    again = json.loads(one.stdout)["command"]
    assert f"--model {model}" in again
    assert str(named(model).block_size) in again
    assert run(*shlex.split(again)[1:]).stdout_bytes == one.stdout_bytes


def test_sweep_has_no_optimum_for_groups_and_prints_a_dash(run: Run) -> None:
    document = json.loads(run(*SWEEP, "--model", "qwen3-next", "--json").stdout)
    [entry] = document["results"]
    assert (entry["optimum_hit_rate"], entry["gap_closed"]) == (None, None)
    assert entry["hit_rate"] <= entry["attainable_hit_rate"]
    assert {group["num_groups"] for group in entry["by_group"]["groups"]} == {1, 3}
    [line] = run(*SWEEP, "--model", "qwen3-next").stdout.splitlines()[2:3]
    assert line.split()[5] == "\N{EN DASH}"


def test_plan_answers_in_bytes_of_the_blocks_of_all_groups(run: Run) -> None:
    document = json.loads(run(*PLAN, "--model", "gemma-3", "--json").stdout)
    [entry] = document["results"]
    assert document["bytes_per_token"] == 65_536
    assert entry["num_bytes"] == entry["num_blocks"] * 16 * 65_536
    assert entry["replayed_hit_rate"] >= 0.1


def test_plan_tells_the_next_smaller_pool_where_hits_come_in_a_step(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"format": "blockmgr-trace", "version": 1}]
    for number in range(30):
        first = 1000 * (number % 3)
        tokens = list(range(first, first + 65))
        row = {"arrival_ms": 60_000 * number, "namespace": "", "num_output_tokens": 0}
        rows.append({**row, "outputs": [], "tokens": tokens})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("plan", path, "--hit-rate", "10%", "--model", "gemma-3")
    result = run(*args)
    assert result.exit_code == 0, result.stderr
    [line] = [line for line in result.stderr.splitlines() if "inside a step" in line]
    [entry] = json.loads(run(*args, "--json").stdout)["results"]
    blocks, smaller = entry["num_blocks"], entry["smaller"]
    assert smaller["num_blocks"] == blocks - 1
    assert smaller["hit_rate"] < 0.1
    assert f"{blocks:,} blocks find {entry['replayed_hit_rate']:.2%}, {blocks - 1:,} find" in line


def test_a_config_says_groups_and_block_size(run: Run, config_folder: Path) -> None:
    document = json.loads(run(*REPLAY, "--model", config_folder, "--json").stdout)
    assert document["model"]["groups"] == ["FullAttention()", *["RecurrentState()"] * 3]
    # 2 MiB and 64 KiB of state in float32 and bfloat16, over 2 KiB per token and layer.
    assert document["config"]["block_size"] == 1056
    assert document["model"]["bytes_per_block"] == 2 * 2048 * 1056
    narrow = run(*REPLAY, "--model", config_folder, "--dtype", "float8_e4m3fn", "--json")
    assert json.loads(narrow.stdout)["config"]["block_size"] > 1056


@pytest.mark.parametrize("asked", [REPLAY, (*PLAN[:3], "0%")], ids=["replay", "plan"])
def test_a_config_is_read_without_torch(config_folder: Path, asked: tuple[Any, ...]) -> None:
    without = "import sys; sys.modules['torch'] = None; from blockmgr.__main__ import main; main()"
    command = [sys.executable, "-c", without, *map(str, asked), "--model", str(config_folder)]
    done = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--block-size 1056" in json.loads(done.stdout)["command"]


def test_an_element_type_that_no_cache_has_is_named(run: Run, config_folder: Path) -> None:
    file = config_folder / "config.json"
    file.write_text(json.dumps({**QWEN3_NEXT, "dtype": "auto"}), encoding="utf-8")
    result = run(*PLAN, "--model", config_folder)
    assert result.exit_code == 2
    assert "dtype of the config must be one of float32" in result.stderr
    assert "got 'auto'; pass dtype" in result.stderr


def test_a_model_without_full_attention_is_taken_as_one_group_and_says_so(
    run: Run, tmp_path: Path
) -> None:
    config = {
        "model_type": "mistral",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "hidden_size": 64,
        "dtype": "bfloat16",
        "sliding_window": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = run(*PLAN, "--model", tmp_path, "--json")
    assert json.loads(result.stdout)["bytes_per_token"] == 2 * 4 * 64 * 2
    assert "taken as one group of full attention" in result.stderr
    assert "one of FullAttention for replays" in result.stderr


def test_a_model_of_one_group_is_replayed_as_without_it(run: Run, tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 64,
        "dtype": "float16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with_model = json.loads(run(*REPLAY, "--model", tmp_path, "--json").stdout)
    without = json.loads(run(*REPLAY, "--json").stdout)
    assert with_model["results"] == without["results"]
    assert with_model["model"] == {
        "bytes_per_block": 2 * 2 * 64 * 2 * 16,
        "groups": [],
        "name": str(tmp_path),
    }


def test_named_models_are_the_shapes_that_vllm_makes_of_them() -> None:
    """Block sizes as vLLM chooses them: the first multiple of 16 tokens that holds a state."""
    hybrid = {name: model for name, model in NAMED.items() if model.groups}
    assert {name: model.block_size for name, model in hybrid.items()} == {
        "deepseek-v4": 256,
        "gemma-3": None,
        "gemma-4": 32,
        "qwen3-next": 544,
        "qwen3.5": 272,
        "nemotron-h": 2096,
    }
    qwen = (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) * 2
    nemotron = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    states = ((qwen, 12, "qwen3-next"), (qwen, 8, "qwen3.5"), (nemotron, 6, "nemotron-h"))
    for state, layers, name in states:
        a_token = named(name).bytes_per_token // layers
        assert -(-state // a_token // 16) * 16 == named(name).block_size


V4_KINDS = ("heavily_compressed_attention", "compressed_sparse_attention")
V4 = {
    "num_hidden_layers": 43,
    "layer_types": [V4_KINDS[0], *V4_KINDS * 21],
    "compress_rates": dict(zip(V4_KINDS, (128, 4), strict=True)),
    "partial_rotary_factor": 0.125,
    "sliding_window": 128,
    "head_dim": 512,
    "index_head_dim": 128,
}
"""A model of as many layers as DeepSeek-V4-Flash, in another order."""


def test_deepseek_v4_is_the_shape_that_vllm_plans_for_it() -> None:
    """By ``kv_cache_planning`` of vLLM 0.33, the pages of 62 caches fill a block."""
    model = named("deepseek-v4")
    assert model.bytes_per_block(256) == 21 * (37_440 + 8_640) + 20 * 1_728
    assert model.bytes_per_token_on(8) == model.bytes_per_token  # each GPU keeps all of it
    plans = json.loads(PLANS.read_text(encoding="utf-8"))["families"]
    [planned] = [plan["groups"] for plan in plans if plan["name"] == "DeepSeek-V4"]
    expected = sorted((group.get("sliding_window", 0), group["block_size"]) for group in planned)
    for made in (model, Model.from_config("V4", V4)):
        sizes = [(getattr(group, "width", 0), group.block_size) for group in made.groups]
        assert sorted(sizes) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [0, 2] * 22}, "compress_ratios of the config must be 0, 4 or 128"),
        ({"compress_ratios": [4]}, "config has 1 compress_ratios, there are 43 layers"),
        ({"compress_ratios": 4}, "compress_ratios of the config must be a list, got 4"),
        ({"index_head_dim": None}, "config has no index_head_dim"),
        ({"dtype": "float16"}, "must not be given for V4, which compresses tokens"),
    ],
)
def test_layers_that_compress_otherwise_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Model.from_config("V4", {**V4, **changes}, changes.get("dtype"))
    with pytest.raises(ValueError, match="in a way that is not known"):
        Model.as_one_group("V4", {**V4, "layer_types": None, "dtype": "bfloat16"})


def test_parts_of_blocks_whose_entries_stand_for_many_tokens_are_not_reused(run: Run) -> None:
    result = run("replay", "chat", "--model", "deepseek-v4", "--min-partial-tokens", 16)
    assert result.exit_code == 2
    assert "min_partial_tokens must be 0 for deepseek-v4, where one entry" in result.stderr


def test_models_with_full_attention_alone_go_by_the_numbers_of_their_layers(run: Run) -> None:
    plain = {name: model.bytes_per_token for name, model in NAMED.items() if not model.groups}
    assert plain == {
        "llama-3-8b": kv_bytes_per_token(32, 8, 128, "bfloat16"),
        "llama-3-70b": kv_bytes_per_token(80, 8, 128, "bfloat16"),
        "qwen3-8b": kv_bytes_per_token(36, 8, 128, "bfloat16"),
        "qwen3-32b": kv_bytes_per_token(64, 8, 128, "bfloat16"),
        **dict.fromkeys(("deepseek-v3", "kimi-k2"), 61 * (512 + 64) * 2),
    }
    asked = ("plan", "chat", "--hit-rate", "60%")
    shape = ("--layers", 36, "--kv-heads", 8, "--head-size", 128, "--dtype", "bfloat16")
    by_name, by_shape = (
        json.loads(run(*asked, *how, "--json").stdout) for how in (("--model", "qwen3-8b"), shape)
    )
    assert by_name["results"] == by_shape["results"]


def test_a_plan_says_what_each_gpu_holds_and_whether_it_fits(run: Run) -> None:
    asked = ("plan", "chat", "--hit-rate", "60%", "--model", "llama-3-8b")
    [one] = json.loads(run(*asked, "--json").stdout)["results"]
    gpus = ("--tensor-parallel", 4, "--gpu-memory", "1.9GiB")
    document = json.loads(run(*asked, *gpus, "--json").stdout)
    [four] = document["results"]
    assert one["num_bytes"] == 4 * four["num_bytes"]
    assert one["num_blocks"] == four["num_blocks"]
    assert four["fits"] is True  # 7.36 GiB in all
    assert (
        run(*shlex.split(document["command"])[1:]).stdout == json.dumps(document, indent=2) + "\n"
    )
    table = run(*asked, "--gpu-memory", 7).stdout
    assert "fits" in table
    assert " no " in table


@pytest.mark.parametrize(
    ("model", "gpus", "message"),
    [
        ("llama-3-8b", 3, "must divide the 8 K/V heads of llama-3-8b"),
        ("qwen3-next", 4, "must be at most 2, the K/V heads of qwen3-next"),
    ],
)
def test_gpus_that_cannot_divide_the_heads_are_refused(model: str, gpus: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named(model).bytes_per_token_on(gpus)


def test_more_gpus_than_heads_keep_heads_more_than_once() -> None:
    model = named("llama-3-8b")
    assert model.bytes_per_token_on(16) == model.bytes_per_token_on(8) == 131_072 // 8
    assert named("qwen3-next").bytes_per_token_on(2) == named("qwen3-next").bytes_per_token // 2


@pytest.mark.parametrize(
    ("text", "gib"),
    [("7.5", 7.5), ("20GiB", 20), (" 512 mib", 0.5), ("2TiB", 2048), ("20GB", None), ("0", None)],
)
def test_memory_of_a_gpu_is_a_number_of_gib_or_has_a_unit(
    run: Run, text: str, gib: float | None
) -> None:
    asked = ("plan", "chat", "--hit-rate", "1%", "--model", "llama-3-8b", "--gpu-memory", text)
    if gib is not None:
        assert parse_gib(text) == gib
        return
    result = run(*asked)
    assert result.exit_code == 2
    assert f"must be a number of GiB, or one with MiB, GiB or TiB, got '{text}'" in result.stderr


def test_options_about_gpus_need_a_model(run: Run) -> None:
    asked = ("plan", "chat", "--hit-rate", "60%")
    for words in (("--tensor-parallel", 2), ("--gpu-memory", 4)):
        result = run(*asked, *words)
        assert result.exit_code == 2
        assert "needs --model" in result.stderr


def test_a_fleet_of_one_replica_with_groups_counts_what_replay_counts(run: Run) -> None:
    asked = ("fleet", "tree-of-thought", "--capacity", "60%", "--model", "qwen3-next")
    document = json.loads(run(*asked, "--replicas", "1,2", "--routers", "session", "--json").stdout)
    one, two = document["results"]
    alone = ("replay", "tree-of-thought", "--capacity", "60%", "--model", "qwen3-next", "--json")
    [replayed] = json.loads(run(*alone).stdout)["results"]
    assert one["num_blocks"] == replayed["num_blocks"] == 2 * two["num_blocks"]
    assert one["of_replicas"][0]["hit_tokens"] == replayed["hit_tokens"] > 0
    assert one["best_hit_rate"] is two["best_hit_rate"] is None
    assert document["model"]["groups"] == list(map(repr, named("qwen3-next").groups))
    assert document["config"]["block_size"] == 544
    again = shlex.split(document["command"])[1:]
    assert json.loads(run(*again).stdout)["results"] == document["results"]


def test_replicas_that_only_prefill_are_refused_with_groups(run: Run) -> None:
    result = run("fleet", "chat", "--replicas", "1,2+2", "--model", "gemma-3")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: replicas must not be split with several groups")
    assert "which gemma-3 has, got 2+2" in result.stderr
