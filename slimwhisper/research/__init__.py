"""Forms that approximate attention, after their papers, and what measures them.

`slimwhisper.cache.forms` imports this where such a form, or a file of `calibrate`, is named, and
the command line for its commands; nothing else in the package does. docs/internals/caches.md says
what the forms are good for, docs/internals/papers.md where they are from.
"""

# The forms of `slimwhisper.research.forms`, and the attentions that they are for: help texts and
# messages name them before they are imported
ATTENTIONS = {
    **dict.fromkeys(("zack", "sparse", "sparq", "sparq_latent"), ("cross", "self")),
    **dict.fromkeys(("keyformer", "keyformer_latent"), ("self",)),
    "compact": ("cross",),
}
