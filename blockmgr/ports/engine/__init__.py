"""A small continuous-batching engine: a transformers model on block tables.

Callers use ``Engine``: ``generate`` samples, and ``beam_search`` keeps the best beams.
``scheduler`` contains its loop, and shows how an engine follows the step contract.
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
