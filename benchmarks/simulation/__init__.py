"""Rollouts in virtual time: the real sampler between a simulated server and a simulated judge.

`clock.py` is an event loop whose clock jumps, `scenario.py` holds every number, `server.py` is a server with continuous
batching, `doors.py` makes the policy and the judge of it, `modes.py` runs a batch in four ways, `step.py` adds the
update and divides GPUs, and `client.py` measures, in real time, what the client itself costs.
"""
