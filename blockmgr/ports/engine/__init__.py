"""A small continuous-batching engine: a transformers model on block tables.

``Engine`` is what callers need: ``generate`` samples, ``beam_search`` keeps the best. ``scheduler``
is its loop, and the place to read how an engine keeps to the step contract.
"""

from blockmgr.ports.engine.beam import BeamConfig
from blockmgr.ports.engine.engine import Engine
from blockmgr.ports.engine.jobs import Generation, Sample
from blockmgr.ports.engine.report import EngineReport
from blockmgr.ports.engine.sampling import Sampling, StreamedToken

__all__ = [
    "BeamConfig",
    "Engine",
    "EngineReport",
    "Generation",
    "Sample",
    "Sampling",
    "StreamedToken",
]
