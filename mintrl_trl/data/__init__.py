"""Where the rows come from: problems, references and answers as plain dicts. Never a model, a server or a trainer."""
