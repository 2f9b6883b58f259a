# %% [markdown]
# # How large must a KV cache be?
#
# A small study of one workload. It opens as a notebook in VS Code, PyCharm and Jupyter (with
# jupytext), and runs as a script. Replace the workload by a trace of your own to size a real cache.

# %%
from dataclasses import replace
from fractions import Fraction

from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.misses import misses
from blockmgr.lab.optimum import optimum
from blockmgr.lab.planning import kv_bytes_per_token, plan
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.workloads import generate

# %% [markdown]
# ## The workload
#
# Conversations: each turn sends everything said before. `blockmgr.lab.trace.read_trace` reads a
# recorded trace instead. Service times of 0 replay one request at a time.

# %%
trace = generate("chat", seed=0, conversations=60)
config = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)
ceiling = attainable(trace, config)
print(f"{len(trace.requests)} requests; an unbounded pool finds {ceiling.hit_rate:.1%} of tokens")

# %% [markdown]
# ## The hit rate of each pool size
#
# The curve of LRU takes one pass for all sizes. The optimum knows the future, so no eviction order
# can find more.

# %%
curve = hit_rate_curve(trace, config)
print(" blocks    LRU  adaptive  optimum")
for share in (10, 25, 50, 100):
    size = ceiling.working_set_blocks * share // 100
    adaptive = replay(trace, size, replace(config, eviction="adaptive")).hit_rate
    best = optimum(trace, size, config).hit_rate
    print(f"{size:>7,} {curve.hit_rate_at(size):>6.1%} {adaptive:>9.1%} {best:>8.1%}")

# %% [markdown]
# ## Why the small pool misses
#
# Only tokens that were evicted come back with a larger pool.

# %%
small = ceiling.working_set_blocks // 10
table = misses(trace, small, config)
for reason, tokens in table.missed_tokens.items():
    print(f"{reason.value:<24} {tokens / table.query_tokens:>6.1%}")
print(f"half of the evicted tokens need {table.more_blocks_for(0.5):,} more blocks")

# %% [markdown]
# ## Memory for 80 %
#
# The K/V of a model with 32 layers and 8 K/V heads of 128 bfloat16 numbers.

# %%
size = kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_size=128, dtype="bfloat16")
[row] = plan(trace, [Fraction(8, 10)], config, bytes_per_token=size).rows
print(f"80% takes {row.num_blocks:,} blocks: {row.num_bytes / 2**30:.1f} GiB")
