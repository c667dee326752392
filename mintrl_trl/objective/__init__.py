"""What is learned from rollouts: advantages, the regression loss, and the numbers to report. Torch only."""
