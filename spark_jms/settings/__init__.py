"""Every setting of spark-jms, declared once.

A setting is one line in a table: name, type with its range, default, one line of documentation, version.

    destination.py   keys of a destination in the module file; stored in its table's metadata
    options.py       options of format("jmsq")
    environment.py   environment variables of every process
    types.py         what a value may be: durations, sizes, whole numbers, choices, text
    table.py         how a class of settings is declared and read from text
    document.py      docs/OPTIONS.md and the explanation in conf/jms-module.yaml, written from the tables

The parsers of the module file, of the options and of the environment, the metadata codec and `jmsq describe` all work
from these tables. This room imports nothing of ours but the errors.
"""
