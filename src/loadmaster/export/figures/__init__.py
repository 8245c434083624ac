"""Pictures of Mapping runs: how solvers learn, and what their maps look like.

`cells` reads run folders, `data` and `room` compute what is shown, `curves` and `maps` draw it
(matplotlib, extra 'figures'). `loadmaster figures` puts them together.
"""
