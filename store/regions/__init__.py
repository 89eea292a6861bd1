"""The region cluster: daemons that keep regions of bytes in two memories, their clients and their administration.

core/                  what decides, without clock, file or socket
daemon/                the process of a daemon
client/                a store instance: objects in the regions of one store
admin/                 storeadmin, and the same from Python
global_directory.py    the folder that daemons, stores and administrators share
connection.py          one connection of a daemon
hosting.py             the services that a daemon may host
command_line.py        the options of daemons and storeadmin
"""
