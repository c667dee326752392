"""How interventions are set before training: pilot rollouts of the base model under several budgets, and the judge."""
