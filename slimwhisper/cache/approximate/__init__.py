"""Forms that approximate attention."""

from slimwhisper.cache.approximate.compact import Compact
from slimwhisper.cache.approximate.keyformer import Keyformer, KeyformerLatent
from slimwhisper.cache.approximate.sparq import SparQ, SparQLatent
from slimwhisper.cache.approximate.sparse import Sparse
from slimwhisper.cache.approximate.zack import Zack

APPROXIMATE_FORMS = (Zack, Sparse, SparQ, SparQLatent, Keyformer, KeyformerLatent, Compact)
