"""The paper's experiments on the small world: what is run, what came of it, and what each claim is worth here.

`cells.py` says what a run is and when two are the same, `experiments.py` lists them (`quick.py` a small set),
`runner.py` runs them, `summary.py` keeps what is needed of one, `scores.py` reads means and spreads, `claims.py` turns
them into verdicts by stated rules, and `page.py` with `figures.py` writes docs/reproduction.md.
"""
