"""The command `matex-tf` and its subcommands, one module each.

It may import everything. Start reading in main.py.
"""
