"""`matex-tf label`: a page on which people name some images, and a network that names the rest.

It may import core, launch, storage and label.network. Start reading in server.py.
"""
