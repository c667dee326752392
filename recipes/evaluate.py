"""Evaluate models and checkpoints on benchmarks as the paper does: `mintrl eval` for whoever runs files.

python recipes/evaluate.py runs/quickstart --benchmarks chains --samples 16
"""

import sys

from mintrl_trl.cli import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
