"""From where on a number is worth acting on. `docs/report.md` says why each lies where it does."""

MOST_OFF_POLICY = 0.06  # share of intervention tokens: the paper's runs stay below
MOST_NO_VERDICT = 0.05  # share of reviews
MOST_DEAD = 0.5  # share of groups that all rollouts of which earned the same
LEAST_ENTROPY_KEPT = 0.25  # of the entropy at the beginning
SOLVED = 0.95  # mean reward from which on little entropy is no loss
MOST_TRUNCATED = 0.2  # share of rollouts
MOST_HELD_UP = 0.3  # share of an update's time that rollouts wait for the judge
LEAST_REVISIONS = 0.01  # share of reviews
MOST_UNSCORED = 0.01  # share of rows without a reward
MOST_MISMATCH = 0.02  # nats per token, where the run's settings name no limit
