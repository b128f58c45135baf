"""What is learned from jobs that ended, kept in the database: run times and speeds."""
