"""What a script does to files, and the programs that it starts: done once for the ranks that share a file system.

It may import core and patches.common, and neither TensorFlow nor Keras: a script comes to its first file before it
imports them. Start reading in once.py; `calls` is the list of what is done so.
"""
