"""Pictures of runs about mappings and games: how solvers learn, and what their plans look like.

`data` reads run folders and computes what is shown; `curves`, `maps` and `game` draw it (matplotlib, extra
'figures'). `loadmaster figures` puts them together.
"""
