"""One idea each: what may serve (filters), what serves better (scores), which hosts to take (choose)."""
