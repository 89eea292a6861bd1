"""`jmsq console`: a read-only web page about a domain.

sample.py    what the domain looks like at one moment
history.py   a bounded past of samples, as series
chart.py     a series as SVG
page.py      the page
server.py    samples every few seconds and serves the page

Features: M8 (docs/FEATURES.md)
"""
