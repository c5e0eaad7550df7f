"""Why: the catalogue of causes, the predicates that prove them, and their attribution."""
