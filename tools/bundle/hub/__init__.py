"""An embedded Hub: kernel repositories over a content-addressed store, for the unmodified Hugging Face clients.

``files`` (durable writes) and ``refusal`` are the ground; ``names`` and ``wire`` say what a request may contain;
``blobs``, ``trees`` and ``store`` hold the data; ``guard`` decides who may ask; ``app`` and ``transfer`` are the
routes; ``server`` binds a loopback port. Nothing here imports ``publish``: a server and a client that share code share
bugs.
"""
