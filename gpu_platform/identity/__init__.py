"""Who a process is: our own small CA, short certificates with SPIFFE names, join tokens of hosts.

It depends on nothing but ``domain`` and ``settings``. Certificates are made and read with the library ``cryptography``.
"""
