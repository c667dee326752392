"""Train a language model with MInTRL on programming problems: `train_math.py` with `task: code`.

accelerate launch recipes/train_code.py                                            # recipes/mbpp_smollm2.yaml
accelerate launch recipes/train_code.py --config recipes/code_qwen3_1.7b.yaml
"""

from train_math import HERE, run

if __name__ == "__main__":
    run(HERE / "mbpp_smollm2.yaml", task="code")
