"""`python -m matex_tf.settings` prints the tables of docs/settings.md."""

from matex_tf.settings import tables

print(tables())
