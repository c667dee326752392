"""The page that shows runs: what it says is computed here, how it looks lies in `assets/`."""
