"""Who may do what: principals, their roles, and the rules of routes. Pure: nothing here asks a database."""
