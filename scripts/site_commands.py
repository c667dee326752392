"""The page of all commands: what each says of itself with `--help`."""

import argparse
import os

from mintrl_trl.commands import command_modules

HEAD = """# Commands

`mintrl COMMAND --help` prints what stands here. Exit codes: 0 done and nothing found, 1 something found, 2 it could not
be done, 130 interrupted. Programs that train are not among them: `accelerate launch recipes/train_math.py`
([train](train.md)).
"""


def commands_page() -> str:
    """The page as Markdown: a table of the commands, then the help text of each."""
    os.environ |= {"COLUMNS": "92", "NO_COLOR": "1"}  # argparse asks the terminal otherwise
    parser = argparse.ArgumentParser(prog="mintrl")
    commands = parser.add_subparsers()
    for module in command_modules():
        module.add(commands)
    summaries = {action.dest: action.help for action in commands._get_subactions()}
    table = ["| command | what for |", "| --- | --- |"]
    table += [f"| [`mintrl {name}`](#mintrl-{name}) | {summaries[name]} |" for name in sorted(commands.choices)]
    helps = [f"## mintrl {name}\n\n```text\n{commands.choices[name].format_help()}```\n" for name in sorted(summaries)]
    return "\n".join([HEAD, *table, "", *helps])
