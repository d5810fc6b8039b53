"""The padding-free guide that the demo runs: small models, real text, with and without the bundle.

``corpus`` makes batches, ``models`` the models, ``measure`` compares and times, ``events`` tells the parent how far it
is; ``without`` and ``with_bundle`` are the two processes. The one that has never seen the bundle computes the truth
(sample by sample, transformers' own code) and writes it to a file; the other one trains and compares.
"""
