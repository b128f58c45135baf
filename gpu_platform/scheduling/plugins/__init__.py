"""The filters and scores that come with the platform, and the choice of a gang's hosts. One idea per file."""
