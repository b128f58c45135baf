"""What every process needs of Temporal: the connection, payloads, search attributes, and how workflows are started."""
