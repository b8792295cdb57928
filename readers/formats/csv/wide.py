"""Rows of CSV text that are so wide that an Arrow table, with an object for each column, would cost too much.

The fields of the rows are put under one another, as one column, which is parsed at the speed of its text: two rows
of a million columns take as long as a million rows of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf.readers.formats.csv.scan import CR, LF, QuoteScanner

#: Rows of more columns than this are read here.
MOST_COLUMNS = 1000


class Fields:
    """The fields of some rows of a text, each of which has as many.

    Args:
        tokens: of the text.
        begins: where the rows begin, int64 of shape (rows,); end: where the last of them ends.
        count: fields of a row, 2 or more.
    """

    def __init__(self, tokens: QuoteScanner, begins: np.ndarray, end: int, count: int):
        self._bytes, self._delimiter = tokens.bytes, chr(tokens.delimiter)
        delimiters = tokens.delimiters()
        low, high = np.searchsorted(delimiters, (begins[0], end))
        inner = delimiters[low:high].reshape(len(begins), count - 1)
        breaks = tokens.outside(np.flatnonzero((tokens.bytes == LF) | (tokens.bytes == CR)))
        ends = np.append(breaks, end)[np.searchsorted(breaks, inner[:, -1])].clip(max=end)
        self._begins = np.concatenate([begins[:, None], inner + 1], axis=1)
        self._ends = np.concatenate([inner, ends[:, None]], axis=1)

    def read(self, columns: Sequence[int], kind: str, missing: Sequence[str] = ("",)) -> Any:
        """Some columns of the rows: an Arrow array of rows x columns fields, row after row.

        Args:
            columns: by position.
            kind, missing: the Arrow type of all of them, and what stands for a missing number: see `parse.columns_of`.

        Raises:
            ValueError: a field is not of this type.
        """
        from matex_tf.readers.formats.csv.parse import columns_of

        begins, ends = self._begins[:, columns], self._ends[:, columns]
        lengths = (ends - begins + 1).reshape(-1)
        stops = np.cumsum(lengths)
        places = np.arange(stops[-1] if len(stops) else 0) + np.repeat(begins.reshape(-1) - (stops - lengths), lengths)
        text = self._bytes[places.clip(max=len(self._bytes) - 1)]
        text[stops - 1] = LF
        return columns_of(text.tobytes(), self._delimiter, 1, {0: kind}, missing, keep_blank=True)[0].combine_chunks()
