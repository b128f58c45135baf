"""Notifications: who is told, what they read, and how it is sent. Apprise sends; it runs in a process of its own."""
