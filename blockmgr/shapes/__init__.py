"""What the layers of a model keep of each token, from its config; needs no torch.

::

    ConfigFields ──► layers_of ──► LayerShape of each layer ──► HybridShape: groups with equal pages
                └──► ModelShape: the layers with K/V, as one group

The caches of ``blockmgr.kv``, the engine of ``blockmgr.ports.transformers`` and ``--model`` of the
lab's commands use them. A cache of tensors has a ``torch.dtype``; a replay only needs its size.
"""

from blockmgr.shapes.elements import ELEMENTS, Element, element_of
from blockmgr.shapes.fields import ConfigFields
from blockmgr.shapes.hybrid import HybridShape
from blockmgr.shapes.layer import LayerShape, StateTensor
from blockmgr.shapes.model import ModelShape

__all__ = [
    "ELEMENTS",
    "ConfigFields",
    "Element",
    "HybridShape",
    "LayerShape",
    "ModelShape",
    "StateTensor",
    "element_of",
]
