"""Every setting of spark-jms, declared once: a line in a table with name, type, default, documentation, version.

These tables read the module file, options, environment variables and metadata. Not here: what a setting does.
"""
