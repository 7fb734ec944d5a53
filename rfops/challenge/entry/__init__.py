"""What `rfops submit` writes an entry from: how data becomes arguments, and how it launches.

plans.py and the file of the form are copied into the entry from their line of dashes on: they take
nothing of rfops.
"""
