"""One room for each framework: lightning, transformers, accelerate. Each needs its extra, and nobody else imports them.

What they share is in _session.py; they use the public names of the library.
"""
