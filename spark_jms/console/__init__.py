"""`jmsq console`: a read-only web page about a domain.

history.py   a bounded past of samples, as series, and a series as SVG
page.py      the page
server.py    samples every few seconds and serves the page; admin/domain_sample.py takes a sample

Features: M8 (docs/FEATURES.md)
"""
