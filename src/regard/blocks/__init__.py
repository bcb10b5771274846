"""The blocks of every Transformer: attention, visibility, positions, feed-forward, norms, sublayers, stacks, caches.

Legend of the shapes that names carry in this package:

    B  sequences in a batch         H  query heads               D  width of the model
    T  tokens of a sequence         G  key/value heads           E  size of one head (V: of its values)
    Q  query tokens                 S  packed sequences          F  hidden width of the feed-forward
    K  key tokens                   N  tokens of a packed batch  R  rows of a packed batch, or relative distances
    C  columns of a cache           W  width of a packed row     P  patches of an image

A batch is padded, `[B, T, ...]`, or packed, `[N, ...]`; what works on either is written without leading letters.
"""
