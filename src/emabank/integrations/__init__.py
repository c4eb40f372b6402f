"""One module per framework: lightning, transformers, accelerate. Each needs its extra; the library imports none.

They share _session.py and use only public names of the library.
"""
