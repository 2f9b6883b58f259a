"""The lab: seeded workloads and recorded traces, replayed through the real manager.

* ``trace``, ``request`` and ``stored``: requests, and where they are kept.
* ``formats``: the files that traces come from, one reader a format.
* ``workloads``: seeded generators of requests.
* ``replay``: a trace through a ``BlockManager``, with concurrency.
* ``moment``: a replay stopped on its way, to look at the manager.
* ``block_map``: a manager drawn, as a web page or as SVG.
* ``attainable``: the hit rate of an unbounded pool on the same trace.
* ``references``: the blocks a trace refers to, by runs that share their fate.
* ``optimum``: the most that any order of eviction finds.
* ``curve``: the hit rate at every capacity in one pass, on ``distances`` and ``stack``.
* ``study``: one trace at several capacities, beside what was attainable.
* ``sweep``: policies, pool sizes and block sizes, in several processes.
* ``fleet``, ``fleets`` and ``routers``: several replicas behind a router.
* ``hints``: what a replay tells the manager of requests that end.
* ``planning``: how many blocks, and how much memory, give a hit rate.
* ``watch``: a replay that remembers when each block was filled, found and evicted.
* ``mooncake``: any trace in Mooncake's format.
* ``page``: all of it as one web page.
* ``report`` and ``plot``: the results as a table, as JSON and as a picture.

The last two need the extras ``cli`` and ``plot``, ``page`` needs ``plot``, and nothing else here
imports them.
"""
