"""The lab: seeded workloads and recorded traces, replayed through the real manager.

* ``trace``, ``request`` and ``stored``: requests and their storage.
* ``formats``: trace files, with one reader per format.
* ``workloads``: seeded generators of requests.
* ``replay``: a trace through a ``BlockManager``, with concurrency; all of it, or up to a step.
* ``block_map``: a manager drawn as SVG.
* ``attainable``: the hit rate of an unbounded pool on the same trace.
* ``references`` and ``runs``: the blocks a trace refers to, as a forest of runs.
* ``optimum``: an upper bound for any eviction order.
* ``curve``: the hit rate at every capacity in one pass.
* ``study``: one trace at several capacities, compared with an unbounded pool.
* ``sweep`` and ``workers``: policies, pool sizes and block sizes, in several processes.
* ``fleet``, ``fleets`` and ``routers``: several replicas behind a router.
* ``hints``: the hints that a replay gives the manager at the end of a request.
* ``planning``: the number of blocks and the memory for a hit rate.
* ``page``: all results on one web page.
* ``report`` and ``plot``: results as a table, as JSON and as a picture.

``report`` needs the extra ``cli``; ``plot``, ``page`` and ``block_map`` need ``plot``. Nothing else
here imports them.
"""
