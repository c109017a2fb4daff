"""The forms that approximate attention. Importing this registers them."""

from slimwhisper.cache.forms import register
from slimwhisper.research.forms.compact import Compact
from slimwhisper.research.forms.keyformer import Keyformer, KeyformerLatent
from slimwhisper.research.forms.sparq import SparQ, SparQLatent
from slimwhisper.research.forms.sparse import Sparse
from slimwhisper.research.forms.zack import Zack

for form in (Zack, Sparse, SparQ, SparQLatent, Keyformer, KeyformerLatent, Compact):
    register(form)
