"""What runs outside the trainer: the launcher process and, forked from it, the untrusted programs.

Owns: starting programs, confining them, and the code around them that calls their functions. Standard library only, so
that the launcher starts fast and stays small. Never holds an expected result: verdicts are made in the trainer
(`rewards.code`). Linux only.
"""
