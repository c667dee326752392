"""The paper's figures and its theory from run folders: numbers first, as small tables, and pictures drawn from them."""
