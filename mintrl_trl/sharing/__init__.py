"""What leaves the machine: a trained model with its card, its recipe and its numbers, on the hub.

`card.py` writes the model card from a run folder, `examples.py` the rollouts in it, `recipe_file.py` the recipe that
makes such a run again; `folders.py` decides which files are uploaded, `contents.py` puts all of it into a folder and
`pusher.py` uploads it; `trainer_hub.py` puts this in front of a trainer, `push_run.py` is for a run that has ended.
"""
