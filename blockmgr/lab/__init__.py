"""The lab: seeded workloads and recorded traces, replayed through the real manager.

* ``trace``, ``request`` and ``stored``: requests and their storage.
* ``formats``: trace files, with one reader per format.
* ``workloads``: seeded generators of requests.
* ``replay``: a trace through a ``BlockManager``, with concurrency.
* ``moment``: a replay stopped in the middle, to inspect the manager.
* ``block_map``: a manager drawn, as a web page or as SVG.
* ``attainable``: the hit rate of an unbounded pool on the same trace.
* ``references``: the blocks a trace refers to, grouped into runs.
* ``optimum``: an upper bound for any eviction order.
* ``curve``: the hit rate at every capacity in one pass, on ``distances`` and ``stack``.
* ``study``: one trace at several capacities, compared with an unbounded pool.
* ``sweep``: policies, pool sizes and block sizes, in several processes.
* ``fleet``, ``fleets`` and ``routers``: several replicas behind a router.
* ``hints``: the hints that a replay gives the manager at the end of a request.
* ``planning``: the number of blocks and the memory for a hit rate.
* ``mooncake``: any trace in Mooncake's format.
* ``page``: all results on one web page.
* ``report`` and ``plot``: results as a table, as JSON and as a picture.

``report`` needs the extra ``cli``; ``plot``, ``page`` and ``block_map`` need ``plot``. Nothing else
here imports them.
"""
