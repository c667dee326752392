"""What a person sees of a run: a live line, a folder of plain files, coloured rollouts, learning curves.

Everything here reads values that others made; nothing that is trained on passes through it.
"""
