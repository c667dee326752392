"""Rule-based outcome rewards. Importing a reward starts no process and loads no maths library."""
