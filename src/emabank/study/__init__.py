"""The study: the paper's protocol from data to report. Needs `pip install "emabank[study]"`.

It uses the public names of the library only, and the library never imports it.
"""
